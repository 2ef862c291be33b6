"""Texts and HTML are split into sentences and put together again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.serving.inline_tags import serialize
from scripts.serving.insertion import insert
from scripts.serving.texts import ESCAPES, SPLITTERS, gap, join, shorten, split_html, split_text
from tests.scripts.serving.linked import Unlinked


def sentences(pieces):
    return [piece.text for piece in pieces if piece.is_sentence]


def upper(text: str, form: str) -> str:
    return translated(SPLITTERS[form](text, "en"), str.upper, ESCAPES[form])


def translated(pieces, translate, escape) -> str:
    """Returns the text with translations whose words have the order of the source."""
    return join(
        pieces, (_marked(piece, translate, escape) for piece in pieces if piece.is_sentence)
    )


def _marked(piece, translate, escape) -> str:
    target = translate(piece.text)
    return (
        insert(Unlinked(), piece.text, piece.marks, target, escape)
        if piece.marks
        else escape(target)
    )


@given(st.text(st.sampled_from("aB .?!\n\r\t\x0b\x00\u2028\u202e<&é中。")))
def test_the_pieces_of_a_text_are_the_text(text):
    pieces = split_text(text, "en")
    assert "".join(piece.text for piece in pieces) == text
    assert all(piece == piece.strip() != "" for piece in sentences(pieces))


def test_sentences_end_at_their_marks_and_at_line_breaks():
    text = "  Dr. Smith is here.  Are you?\n\nA title\r\nThe end. "
    assert sentences(split_text(text, "en")) == [
        "Dr. Smith is here.",
        "Are you?",
        "A title",
        "The end.",
    ]
    assert upper(text, "text") == text.upper()
    names = "Call obj.Method() or System.Out now. Version 2.0.Beta is out."
    assert sentences(split_text(names, "en")) == [
        "Call obj.Method() or System.Out now.",
        "Version 2.0.Beta is out.",
    ]
    assert len(sentences(split_text("\u4f60\u597d\u3002\u6211\u5f88\u597d\u3002", "zh"))) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p class='a'>one <b>two</b>\n three</p>", "<p class='a'>ONE <b>TWO</b>  THREE</p>"),
        ("<script>let a = '<p>b</p>';</script><style>p {}</style>c", None),
        ("<!-- a --><?b?><!doctype c><br/>d <a title='e > f'>g</a>", None),
        ("a &lt;b&gt; &#65; &amp; c", "A &lt;B&gt; A &amp; C"),
        ("one\ntwo", "ONE TWO"),
        ("a < b", "A &lt; B"),
        ("a <img src=x onerror='b", "A <img src=x onerror='b"),  # as browsers read it
        ("</>a", "</>A"),
        ("<![a<b><!--c--!>d&#x; <b>e", "<![a<b><!--c--!>D&amp;#X; <b>E"),
        ("<script>a <b>", "<script>a <b>"),
        (
            "<p>run <code>a\n&amp;b</code> on \u2713 &lt; <td>\U0001f642</td>",
            "<p>RUN <code>a\n&amp;b</code> ON \u2713 &lt; <td>\U0001f642</td>",
        ),
        ("a <b translate=no>b <b>c</b> d</B> e", "A <b translate=no>b <b>c</b> d</B> E"),
        (
            "<p TRANSLATE = 'no' id=a>a &amp;<br>b</p>c<p>d",
            "<p TRANSLATE = 'no' id=a>a &amp;<br>b</p>C<p>D",
        ),
        (
            "<i title='a'translate=\"no\">a</i>b<i translate=no>",
            "<i title='a'translate=\"no\">a</i>B<i translate=no>",
        ),
        ("a<i translate=no>b", "A<i translate=no>b"),
        (
            "<img translate=no>a <code translate=no>b</code>c",
            "<img translate=no>A <code translate=no>b</code>C",
        ),
        (
            "<i title=' translate=no '>a</i> <i translate=none>b",
            "<i title=' translate=no '>A</i> <i translate=none>B",
        ),
        ("<i data-translate=no>a</i> <i translate>b", "<i data-translate=no>A</i> <i translate>B"),
        ("<pre>one\n  two &amp;\n</pre>three\nfour", "<pre>ONE\n  TWO &amp;\n</pre>THREE FOUR"),
        ("<kbd>a</kbd><math><mi>b</mi></math>c", "<kbd>a</kbd><math><mi>b</mi></math>C"),
        ("a <b ='>b</b> <b='>c", "A <b ='>B</b> <b='>C"),  # names of an attribute and an element
        ("a <\u017f> b", "A &lt;S&gt; B"),  # not an ASCII letter, although it is s in another case
        ("", ""),
    ],
)
def test_only_the_text_of_html_is_translated(text, expected):
    if expected is None:
        expected = text.replace(">c", ">C").replace(">d", ">D").replace(">g", ">G")
    assert upper(text, "html") == expected


PIECES = [
    "<a x='",
    "<a ",
    "<!--",
    "<![",
    "<script>",
    "</a/",
    "<?",
    "<",
    "&#",
    "<a =\"'",
    "<a translate=no>",
]


@pytest.mark.parametrize("piece", [*PIECES, "<a translate = "])
def test_markup_without_its_end_takes_linear_time(piece):
    text = piece * 20_000  # quadratic time would be minutes
    assert len(split_html(text, "en")) < 9


@given(st.text(st.sampled_from("ab <>&;/!-='\"#x\n"), max_size=60))
def test_a_translation_cannot_add_markup(text):
    pieces = split_html(text, "en")
    with_markup = translated(pieces, lambda sentence: "<b>", ESCAPES["html"])
    assert with_markup == translated(pieces, lambda sentence: "&lt;b&gt;", str)
    markup = [piece.text for piece in pieces if not piece.is_sentence]
    markup += [serialize(piece.marks) for piece in pieces if piece.marks]
    assert "".join(markup).count("<") == with_markup.count("<")


@given(st.text(st.sampled_from("abc  \t"), max_size=50), st.integers(1, 9))
def test_long_sentences_are_cut_into_pieces_that_fit(text, longest):
    pieces = shorten(text, lambda sentence: len(sentence) <= longest)
    assert "".join(piece.text for piece in pieces) == text
    assert all(len(piece) <= longest for piece in sentences(pieces))


def test_translations_have_spaces_between_sentences_if_their_language_has():
    pieces = split_text("\u4f60\u597d\u3002\u6211\u5f88\u597d\u3002\n\u4f60\u5462\uff1f", "zh")
    assert join(pieces, iter("abc"), gap("zh-Hans", "en")) == "a b\nc"
    assert join(pieces, iter("abc"), gap("zh", "ja")) == "ab\nc"
    assert gap("en", "zh") == gap("en", "de") == ""


def test_texts_without_letters_and_digits_stay():
    assert sentences(split_text("-----\n\U0001f642\nA 1. 2", "en")) == ["A 1.", "2"]


def test_long_sentences_are_cut_between_words():
    assert sentences(shorten("one two  three four", lambda sentence: len(sentence) < 11)) == [
        "one two",
        "three four",
    ]
