"""Tags within a sentence return around the words that are linked to theirs."""

import html
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.serving.inline_tags import MOST
from scripts.serving.insertion import insert
from scripts.serving.texts import ESCAPES, Model, join, split_html, split_text
from tests.scripts.serving.linked import Linked, Unlinked
from transformer.decoding.forced_decoding import Attention

LAMP = "I think that my brother hid the red lamp in the garden."
LAMPE = "Ich glaube, dass mein Bruder die rote Lampe im Garten versteckt hat."
WORDS = (
    "I-Ich think-glaube that-dass my-mein brother-Bruder hid-versteckt hid-hat the-die red-rote "
    "lamp-Lampe"
)
LINKS = {tuple(link.split("-")) for link in f"{WORDS} in-im garden-Garten .-.".split()}
CLOCKS = "Must we sell the twelve small clocks on Monday?"
CLOCK_WORDS = "Must-Müssen we-wir on-am Monday-Montag the-die twelve-zwölf"
UHREN = "Müssen wir am Montag die zwölf kleinen Uhren verkaufen?"
LINKS |= {tuple(link.split("-")) for link in CLOCK_WORDS.split()}
LINKS |= {("small", "kleinen"), ("clocks", "Uhren"), ("sell", "verkaufen"), ("?", "?")}
GERMAN = Linked(lambda source, target: (source, target) in LINKS)
TRANSLATIONS = {LAMP: LAMPE, CLOCKS: UHREN}
NO_EMOJI = Model(knows=lambda emoji: False)


def german(sentence: str) -> str:
    return TRANSLATIONS.get(" ".join(sentence.split()), sentence.upper())


def translate(text: str, model=GERMAN, translations=german, form="html") -> str:
    pieces = {"html": split_html, "text": split_text}[form](text, "en", NO_EMOJI)
    escape, done = ESCAPES[form], []
    for piece in pieces:
        if piece.is_sentence:
            target = translations(piece.text)
            done.append(
                insert(model, piece.text, piece.marks, target, escape)
                if piece.marks
                else escape(target)
            )
    return join(pieces, iter(done))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "I think that <b>my brother</b> hid the <i>red lamp</i> in the garden.",
            "Ich glaube, dass <b>mein Bruder</b> die <i>rote Lampe</i> im Garten versteckt hat.",
        ),
        (
            "I think that my brother <em class='x'>hid</em> "
            '<span>the <a href="y">red</a> lamp</span> in the garden.',
            'Ich glaube, dass mein Bruder <span>die <a href="y">rote</a> Lampe</span> im Garten '
            "<em class='x'>versteckt hat</em>.",
        ),
        ("<b>I think that my brother hid the red lamp in the garden.</b>", f"<b>{LAMPE}</b>"),
        (
            "<b>I think that my brother hid the red lamp in the garden</b>.",
            "<b>Ich glaube, dass mein Bruder die rote Lampe im Garten versteckt hat</b>.",
        ),
        (
            "I think that my brother hid the <b>red</b><i>  lamp</i> in the <u>garden.</u>",
            "Ich glaube, dass mein Bruder die <b>rote</b> <i>Lampe</i> im <u>Garten</u> versteckt "
            "hat.",
        ),
        (
            "I think that my brother<a id=x></a> hid the <img src=y>red lamp in the <!-- z --> "
            "garden.",
            "Ich glaube, dass mein Bruder<a id=x></a> die <img src=y>rote Lampe im <!-- z --> "
            "Garten versteckt hat.",
        ),
        (
            "<p>I think that my <b>brother hid the red lamp in the garden. <i>Must we</i> sell "
            "the</b> twelve small clocks on Monday?</p>",
            "<p>Ich glaube, dass mein <b>Bruder die rote Lampe im Garten versteckt hat. "
            "<i>Müssen wir</i></b> am Montag die zwölf kleinen Uhren verkaufen?</p>",
        ),
        ("<b>Must</b><br><p>we", "<b>MUST</b><br><p>WE"),
        (
            "Must we sell the twelve <code>a &lt; b</code> small clocks <b translate=no>on x</b> "
            "on Monday?",
            "Müssen wir am Montag die zwölf <code>a &lt; b</code> kleinen Uhren "
            "<b translate=no>on x</b> verkaufen?",
        ),
        # not well nested
        ("Must we <b>sell <i>the</b> twelve</i>", "MUST WE <b>SELL <i>THE</b> TWELVE</i>"),
        ("<b " + "<b>" * MOST + "Must</b> we", "<b " + "<b>" * MOST + "MUST</b> WE"),
    ],
)
def test_tags_are_around_the_words_of_their_translation(text, expected):
    assert translate(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Must we sell the twelve small clocks on Monday? \U0001f600", f"{UHREN} \U0001f600"),
        ("\u2764\ufe0f Must we sell the twelve small clocks on Monday?", f"\u2764\ufe0f {UHREN}"),
        (
            "Must we\U0001f600 sell the twelve \U0001f44d\U0001f3fd\U0001f389 small clocks on "
            "Monday \U0001f600?",
            "Müssen wir\U0001f600 am Montag die zwölf \U0001f44d\U0001f3fd\U0001f389 kleinen Uhren "
            "verkaufen \U0001f600?",
        ),
    ],
)
def test_emoji_that_the_vocabulary_lacks_stay_in_their_place(text, expected):
    assert translate(text, form="text") == expected
    assert translate(text) == expected


def test_emoji_that_the_vocabulary_has_are_translated():
    assert [piece.text for piece in split_text("one \U0001f600 two", "en")] == [
        "one \U0001f600 two"
    ]


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("the H<sub>2</sub>SO<sub>4</sub> m<sup>2</sup> m<sup>2</sup>", "m2 H2SO4 m2",
         "m<sup>2</sup> H<sub>2</sub>SO<sub>4</sub> m<sup>2</sup>"),
        ("<b>un</b>believable words", "Wörter unglaubliche", "Wörter <b>unglaubliche</b>"),
        ("a <b>&lt;b&gt;</b> a", "<b> & a", "<b>&lt;b&gt;</b> &amp; a"),
        ("one <b>two</b> three", "", "<b></b>"),
    ],
)  # fmt: skip
def test_tags_within_words_and_around_what_is_not_translated(text, target, expected):
    links = {("un", "unglaubliche"), ("unbelievable", "unglaubliche"), ("words", "Wörter")}
    model = Linked(lambda source, word: source == word or (source, word) in links)
    assert translate(text, model, lambda sentence: target) == expected


def test_a_source_without_tokens_keeps_its_tags():
    empty = Linked(lambda source, target: True)
    empty.attention = lambda source, target: Attention(
        ("</s>",), ("<s>",), ("</s>",), np.ones((1, 1, 1, 1)), None, np.ones((1, 1, 1, 1))
    )
    assert translate("\u3164 <b>\u3164</b> \u3164", empty, lambda sentence: "") == "<b></b>"


def test_without_attention_words_are_linked_in_their_order():
    text = "one <b>two</b> three <i>four</i> five, <u>six</u>."
    expected = "ONE <b>TWO</b> THREE <i>FOUR</i> FIVE, <u>SIX</u>."
    assert translate(text, Unlinked()) == expected


def test_without_attention_names_are_linked_to_their_copies():
    target = "Paris mögen wir 2024 noch mehr"
    translated = translate(
        "we like <i>even</i> more <b>Paris</b>", Unlinked(), lambda sentence: target
    )
    assert translated.startswith("<b>Paris</b> mögen")


def test_words_beside_an_emoji_remain_apart():
    pieces = split_text("one\U0001f600two \U0001f600, three", "en", NO_EMOJI)
    assert [piece.text for piece in pieces] == ["one two, three"]


NAMES = [
    "a",
    "abbr",
    "b",
    "big",
    "cite",
    "dfn",
    "em",
    "font",
    "i",
    "mark",
    "q",
    "s",
    "small",
    "span",
    "strong",
    "u",
]
TAG = re.compile(r"<(/?)(\w+)[^>]*>")


@st.composite
def documents(draw):
    """Draws HTML of sentences with nested tags, of which each element has another name; some lack a
    tag.
    """
    names, numbers = iter(NAMES), iter(range(99))

    def content(depth: int) -> str:
        parts = []
        for kind in draw(
            st.lists(
                st.sampled_from(["word", "word", "word", "element", "void", "stop"]), max_size=5
            )
        ):
            name = next(names, None) if kind == "element" and depth < 4 else None
            if name:
                parts.append(f"<{name} id='{next(numbers)} &lt;'>{content(depth + 1)}</{name}>")
            elif kind == "void":
                parts.append(f"<img id={next(numbers)}>")
            else:
                parts.append(
                    {"word": f"w{next(numbers)}", "stop": f"w{next(numbers)}."}.get(kind, ",")
                )
        return draw(st.sampled_from(["", " "])).join(parts) if len(parts) < 3 else " ".join(parts)

    text = content(0)
    tags = list(re.finditer(TAG, text))
    for tag in draw(st.permutations(tags))[: draw(st.integers(0, 1))]:
        text = text[: tag.start()] + text[tag.end() :]
    return text


def nesting(text: str) -> tuple[list[str], set, list[str]]:
    """Returns all tags, the pairs of names of elements and their parents, and the tags that are not
    well nested.
    """
    tags, pairs, stack = [], set(), []
    for tag in TAG.finditer(text):
        tags.append(tag[0])
        if tag[2] == "img":
            pairs.add((tag[0], stack[-1] if stack else ""))
        elif not tag[1]:
            stack.append(tag[2])
        elif stack and stack[-1] == tag[2]:
            stack.pop()
            pairs.add((tag[2], stack[-1] if stack else ""))
        else:
            stack.append(tag[0])
    return tags, pairs, stack


@settings(deadline=None, max_examples=100)
@given(documents(), st.randoms(use_true_random=False), st.booleans())
def test_tags_return_once_and_nested_as_before_around_the_same_translation(
    text, random, has_attention
):
    found = {}

    def shuffled(sentence: str) -> str:
        words = re.findall(r"w\d+", sentence) + ["x<"] * random.randrange(3)
        random.shuffle(words)
        return found.setdefault(
            sentence, " ".join(words).replace("w", "t") + "." * sentence.endswith(".")
        )

    model = Linked(lambda source, target: source[1:] == target[1:]) if has_attention else Unlinked()
    output = translate(text, model, shuffled)
    tags, pairs, unpaired = nesting(text)
    assert sorted(nesting(output)[0]) == sorted(tags)
    assert nesting(output)[2] == unpaired
    if not unpaired:
        assert nesting(output)[1] == pairs
    plain = html.unescape(TAG.sub("", output))
    expected = join(
        [
            piece._replace(text=piece.text if piece.is_sentence else TAG.sub("", piece.text))
            for piece in split_html(text, "en")
        ],
        map(shuffled, (p.text for p in split_html(text, "en") if p.is_sentence)),
    )
    assert plain.split() == html.unescape(expected).split()
    if "<img" not in text:
        assert plain == html.unescape(expected)
