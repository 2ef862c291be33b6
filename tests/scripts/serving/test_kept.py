"""URLs, e-mail addresses, placeholders, tags and emoji are the same in every translation."""

import asyncio
import html
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.serving.kept import SPANS, find_lost, translate
from scripts.serving.models import ServedModel
from scripts.serving.texts import ESCAPES
from tests.scripts.serving.conftest import LIMITS
from tests.scripts.serving.kept_share import count_kept, read_lines
from tests.scripts.serving.linked import Linked, Unlinked
from transformer.decoding.control.control import Control
from transformer.decoding.control.glossary import Glossary
from transformer.support.errors import UserError

LINES = read_lines()


class Shouting(Unlinked):
    """A model that translates by `function`, and knows only spans in `known`."""

    config = SimpleNamespace(
        data=SimpleNamespace(source_language="en", target_language="de"),
        decoding=SimpleNamespace(max_source_length=50),
    )

    def __init__(self, function=str.upper, known=()) -> None:
        self.function = function
        self.known = known
        self.inputs = []

    def translate(self, texts):
        self.inputs += texts
        return [[SimpleNamespace(text=self.function(text))] for text in texts]

    def num_tokens(self, text) -> int:
        return len(text.split())

    def knows(self, text) -> bool:
        return text in self.known


@pytest.fixture(scope="module")
def keeping(served, metrics):
    """A server's model that keeps spans."""
    model = ServedModel(served[0].model, 0.02, 400, metrics, LIMITS.shapes, keep=True)
    yield model
    model.queue.close()


def test_the_marked_spans_are_found():
    assert len(LINES) == 100
    for text, spans in LINES:
        assert SPANS.findall(text) == spans, text


@pytest.mark.parametrize(
    "text",
    [
        "A 50% discount, 20 % of it, 5%ige and 100%.",
        "1 < 2 > 0, a <- b -> c, <3, x<y, (a)",
        "either/or, e.g. this... www. and http:// and @home a@b",
        "f(x) = {x | x > 0} in set notation, 5:30, 1,000.5",
        "A man in a t-shirt! Really? #1 *new* ~ok~ \u00a9 \u2122",
    ],
)
def test_other_text_has_no_spans(text):
    assert SPANS.findall(text) == []


def test_urls_end_where_their_sentence_goes_on():
    cases = {
        "(see https://a.example/b).": "https://a.example/b",
        "[x](https://a.example/b_(c))": "https://a.example/b_(c)",
        "看https://a.example/b。好": "https://a.example/b",
        "https://de.example/K\u00e4se, ja": "https://de.example/K\u00e4se",
        "'https://a.example/b'": "https://a.example/b",
        "<https://a.example/b>": "<https://a.example/b>",
        "发邮件到a@b.example。": "a@b.example",
        "HTTPS://A.EXAMPLE/B": "HTTPS://A.EXAMPLE/B",
        "{{{x}}} a": "{{{x}}}",
        "\u2122\ufe0f a": "\u2122\ufe0f",
    }
    for text, span in cases.items():
        assert SPANS.findall(text) == [span]


@pytest.mark.parametrize(
    "text",
    ["a" * 50_000, "a.b" * 20_000, "<a" * 20_000, "{" * 50_000, "%" * 50_000, "(" * 50_000]
    + ["www." + "(" * 50_000, "www." + "_." * 20_000 + "!", "https://" * 10_000, "%1" * 20_000],
)
def test_the_search_for_spans_takes_linear_time(text):
    start = time.process_time()
    SPANS.findall(text)
    assert time.process_time() - start < 1


@pytest.mark.slow
def test_a_trained_vocabulary_that_lacks_all_spans(keeping):
    """With the 100 lines, `model.translate` of a model of numbers keeps no line."""
    texts = [text for text, _ in LINES]
    assert count_kept(LINES, translate(keeping.model, texts)) == 100
    plain = [best.text for (best,) in keeping.model.translate(texts)]
    assert count_kept(LINES, plain) == 0


@pytest.mark.first_case
@pytest.mark.parametrize("text_format", ["text", "html"])
def test_a_server_that_keeps_spans(keeping, text_format):
    escape = ESCAPES[text_format]
    lines = [(escape(text), [escape(span) for span in spans]) for text, spans in LINES]
    texts = [text for text, _ in lines]
    controls = [Control()] * len(texts)
    n_best = asyncio.run(keeping.translate(texts, text_format, 2, controls, Glossary([])))
    for n in (0, -1):
        assert count_kept(lines, [answer.translations[n] for answer in n_best]) == 100


def test_a_server_without_the_flag_does_not(client, served):
    answer = client.post(
        "/translate", json={"q": "1 2 {name} 3", "source": "in", "target": "out"}
    ).json()
    assert "{name}" not in answer["translatedText"]


def test_a_model_that_copies_its_spans_translates_them_in_place():
    model = Shouting(lambda text: f"{text} JA", known=["{name}"])
    assert translate(model, ["Hello {name}, hi"]) == ["Hello {name}, hi JA"]
    assert model.inputs == ["Hello {name}, hi"]


def test_a_text_with_a_changed_span_is_translated_without_it():
    model = Shouting(known=["{name}", "%s"])
    texts = ["Hello {name}, hi", "no spans", "a %s b"]
    assert translate(model, texts) == ["HELLO {name}, HI", "NO SPANS", "A %s B"]
    assert model.inputs == [*texts[:1], "no spans", "a %s b", "Hello, hi", "a b"]
    # A second copy is a change too.
    assert find_lost(["%s"], [["%s %s"]]) == [0]
    assert find_lost(["%s", "a", "{b} {c}"], [["%s"], ["b"], ["{c} x {b}", "{c}"]]) == [2]


def test_line_breaks_end_sentences_and_remain():
    model = Shouting(lambda text: f"{text}!")
    assert translate(model, ["Title\nBody text.\n\nEnd"]) == ["Title!\nBody text.!\n\nEnd!"]


def test_spans_follow_the_words_that_are_linked_to_theirs():
    links = {("you", "Sie"), ("have", "haben"), ("new", "neue"), ("messages", "Nachrichten")}
    links |= {("Today", "Heute"), (".", ".")}
    model = Linked(lambda source, target: (source, target) in links)
    shouting = Shouting(lambda text: "Heute haben Sie neue Nachrichten.")
    model.translate, model.knows = shouting.translate, shouting.knows
    model.num_tokens = shouting.num_tokens
    model.config.data, model.config.decoding = shouting.config.data, shouting.config.decoding
    assert translate(model, ["Today you <b>have</b> %d new messages \U0001f600."]) == [
        "Heute <b>haben</b> %d Sie neue Nachrichten \U0001f600."
    ]


def test_spans_in_html_are_compared_as_people_see_them():
    lost = [["a"], ["&lt;b&gt; a"], ["x &#128512;"]]
    sources = ["&lt;b&gt; a", "&#60;b> a", "x \U0001f600"]
    shown = [[html.unescape(text) for text in texts] for texts in lost]
    assert find_lost([html.unescape(text) for text in sources], shown) == [0]


@pytest.mark.parametrize("sources", ["abc", [b"x"], ["\ud800 {x}"]])
def test_other_texts_are_refused(sources):
    with pytest.raises(UserError, match="sources"):
        translate(Shouting(), sources)


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("Mail (a@b.cd) now", "Mail now", "Mail a@b.cd now"),
        ("Mail (a@b.cd), now", "now", "a@b.cd now"),
        ("one www.a.example (two)", "one (two)", "one www.a.example (two)"),
        ("one 'www.a.example'", "one", "one www.a.example"),
        ("See https://a.example/ now", "jetzt", " https://a.example/ jetzt"),
        ("%s's friend", "Freund von", "%s Freund von"),
        ("www.a.example, one two", "eins zwei", "www.a.example eins zwei"),
        # These do not make one word with it.
        ("one\u2764\ufe0f two", "one two", "one\u2764\ufe0f two"),
        ("one{n} two", "one two", "one{n} two"),
    ],
)
def test_spans_stay_apart_from_words(text, target, expected):
    assert translate(Shouting(lambda _: target), [text]) == [expected]


SPAN = st.sampled_from(sorted({span for _, spans in LINES for span in spans}))
WORD = st.sampled_from(["one", "Two", "three,", "(four)", "five.", "\u201csix\u201d", "7", "\n"])


@given(st.lists(st.one_of(SPAN, WORD), max_size=12))
def test_any_text_keeps_its_spans(words):
    text = " ".join(words)
    (translation,) = translate(Shouting(str.lower), [text])
    assert Counter(SPANS.findall(translation)) == Counter(SPANS.findall(text))
