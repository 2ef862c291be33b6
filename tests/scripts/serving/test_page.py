"""The page in a browser: without errors, at small and large sizes, in light and dark, by mouse and
by keyboard.
"""

import json
import re
from collections.abc import Iterator

import numpy as np
import pytest

from scripts.serving.app import PAGE
from tests.scripts.serving.conftest import listening

sync_api = pytest.importorskip("playwright.sync_api")

KEY = "a-key-of-20-letters"
SCRIPT = "<script>fail()</script><img src=x>"


@pytest.fixture(scope="module")
def address(served) -> Iterator[str]:
    with listening(served) as address:
        yield address


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def opened(browser, address, problems) -> Iterator:
    """Returns a function that opens the page.

    At the end there must be no error, warning or request elsewhere.
    """
    contexts = []

    def open_page(width: int = 1600, scheme: str = "light", at: str = address):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on(
            "request",
            lambda request: None if request.url.startswith(at) else problems.append(request.url),
        )
        tab.goto(at)
        tab.locator("#target option").first.wait_for(state="attached")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def translated(tab, text: str) -> str:
    """Types a text and returns the translation that the page shows after the pause."""
    with tab.expect_response("**/translate") as response:
        tab.fill("#text", text)
    translation = response.value.json()["translatedText"]
    sync_api.expect(tab.locator("#translation")).to_have_text(translation)
    return translation


def fulfill(tab, name: str, answer: dict) -> None:
    """Answers requests in place of the server."""
    tab.route(f"**/{name}", lambda route: route.fulfill(body=json.dumps(answer)))


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("width", "scheme", "paper"), [(400, "dark", (20, 24, 28)), (1600, "light", (255, 255, 255))]
)
def test_the_translation_comes_at_a_pause_within_the_width_of_the_window(
    opened, served, width, scheme, paper
):
    tab, text = opened(width, scheme), "1 2 3 4 5 6 7 8 9"
    best, second = served[0].model.translate([text], n_best=2)[0]
    assert translated(tab, text) == best.text
    scores = tab.locator("#alternatives .score")
    scores.nth(1).wait_for()
    assert tab.locator("#alternatives-list li span:first-child").all_text_contents() == [
        best.text,
        second.text,
    ]
    shown = [float(score.replace("\N{MINUS SIGN}", "-")) for score in scores.all_text_contents()]
    assert shown == pytest.approx([best.score, second.score], abs=0.006)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == f"rgb{paper}"


def test_words_are_shaded_by_probability_and_sentences_have_their_confidence(opened, served):
    with listening(served[:1]) as address:
        tab = opened(at=address)
        translated(tab, "1 2 3. 4 5")
        model = served[0].model
        sentences = ["1 2 3.", "4 5"]
        rows = model.confidence(sentences, model.translate(sentences))
        shown = tab.locator("#translation [data-confidence]").evaluate_all(
            "words => words.map(word => word.dataset.confidence)"
        )
        assert shown == [f"{100 * one.confidence:.0f} %" for (one,) in rows]
        weights = tab.locator("#translation .word").evaluate_all(
            "words => words.map(word => Number(word.style.getPropertyValue('--weight')))"
        )
        probabilities = [value for (one,) in rows for value in one.word_confidences]
        assert weights == pytest.approx(1 - np.array(probabilities), abs=1e-4)
        assert tab.locator("#confidence-hint").is_visible()


def test_without_a_calibration_the_page_shows_no_confidence(opened):
    tab = opened()
    translated(tab, "1 2 3")
    assert tab.locator("#translation [data-confidence]").count() == 0
    assert tab.locator("#confidence-hint").is_hidden()


def test_an_emoji_within_a_sentence_has_no_probability(opened):
    tab = opened()
    answer = {
        "translatedText": "Ein \U0001f642 Pferd \U0001f642.",
        "alternatives": [],
        "confidence": [
            {"confidence": 0.456, "words": ["Ein", "Pferd."], "word_confidences": [0.75, 0.25]}
        ],
    }
    fulfill(tab, "translate", answer)
    translated(tab, "1 2")
    weights = tab.locator("#translation .word").evaluate_all(
        "words => words.map(word => word.style.getPropertyValue('--weight'))"
    )
    assert weights == ["0.25", "", "0.75", ""]
    assert tab.locator("#translation .word").nth(2).get_attribute("data-confidence") == "46 %"


@pytest.mark.slow
def test_typing_asks_once_and_an_empty_text_nothing(opened):
    tab, asked = opened(), []
    tab.on(
        "request",
        lambda request: (
            asked.append(request.post_data_json["q"]) if "translate" in request.url else None
        ),
    )
    tab.locator("#text").press_sequentially("1 2 3")
    sync_api.expect(tab.locator("#translation")).not_to_be_empty()
    tab.fill("#text", " \n")
    sync_api.expect(tab.locator("#translation")).to_be_empty()
    assert asked == ["1 2 3"] and tab.locator("#alternatives").is_hidden()


@pytest.mark.slow
def test_languages_are_swapped_by_keyboard(opened, served):
    tab = opened()
    best = translated(tab, "1 2 3")
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Shift+Tab")
    with tab.expect_response("**/translate") as response:
        tab.keyboard.press("Enter")
    asked = response.value.request.post_data_json
    assert {"q": best, "source": "out", "target": "in"}.items() <= asked.items()
    sync_api.expect(tab.locator("#translation")).to_have_text(
        served[1].model.translate([best])[0][0].text
    )
    assert tab.input_value("#text") == best


def test_the_detected_language_is_shown(opened):
    tab, answer = (
        opened(),
        {"translatedText": "1", "detectedLanguage": {"language": "out", "confidence": 50.0}},
    )
    fulfill(tab, "translate", answer)
    tab.fill("#text", "1")
    tab.select_option("#source", "auto")
    sync_api.expect(tab.locator("#status")).to_have_text("From out")


def test_a_word_shows_what_it_attended_to(opened, served):
    tab, text = opened(), "1 2 3"
    read = served[0].model.attention(text, translated(tab, text))
    words, weights = tab.locator("#translation .word"), read.cross[-1].mean(axis=0)
    # a token is a word here, and there are ends
    assert weights.shape == (words.count() + 1, 4) and words.count() > 1

    def expect(row: int) -> None:
        weight, name = max(zip(weights[row], ("1", "2", "3", "end of text"), strict=True))
        percent = round(100 * float(weight))
        line = f"{words.nth(row).text_content()} \N{LEFTWARDS ARROW} {name} {percent} %"
        sync_api.expect(tab.locator("#attended")).to_contain_text(line)
        shown = tab.eval_on_selector_all(
            "#attention span", "all => all.map(x => +x.style.getPropertyValue('--weight'))"
        )
        assert shown == pytest.approx(weights[row].tolist(), abs=1e-4)

    words.nth(1).hover()
    expect(1)
    words.nth(0).focus()
    expect(0)
    tab.keyboard.press("ArrowRight")
    expect(1)
    assert [words.nth(i).get_attribute("tabindex") for i in range(2)] == ["-1", "0"]


def test_pieces_are_put_together_as_words(opened):
    def grouped(text: str, *pieces: str) -> list[tuple[str, list[int]]]:
        found = tab.evaluate("([text, pieces]) => grouped(text, pieces)", [text, [*pieces, "</s>"]])
        return [(word["text"], word["pieces"]) for word in found]

    tab = opened()
    assert grouped("ab cd.", "\u2581a", "b", "\u2581", "cd", ".") == [
        ("ab", [0, 1]),
        ("cd.", [2, 3, 4]),
    ]
    assert grouped("a b c", "\u2581ab", "c") == [("a", [0]), ("b", [0]), ("c", [1])]
    assert grouped("a ü", "\u2581a", "\u2581", "<unk>") == [("a", [0]), ("<unk>", [1, 2])]


@pytest.mark.slow
def test_a_translation_of_the_reader_is_compared_by_tokens(opened, served):
    tab, text, own = opened(), "1 2 3", "7 7"
    best = translated(tab, text)
    tab.fill("#own", own)
    tab.keyboard.press("Enter")
    tab.locator("#compared li").first.wait_for()
    scored = served[0].model.score([(text, best), (text, own)])
    shown = [
        float(each.replace("\N{MINUS SIGN}", "-"))
        for each in tab.locator("#compared li span").all_text_contents()
    ]
    log_probabilities = [
        value for translation in scored for value in translation.token_log_probabilities
    ]
    assert shown == pytest.approx(log_probabilities, abs=0.006)
    is_better = scored[1].score > scored[0].score
    assert ("Yours has the higher score" in tab.locator("#verdict").text_content()) == is_better
    translated(tab, "4 5")
    assert tab.locator("#compared li").count() == 0


@pytest.mark.slow
def test_the_beam_has_all_hypotheses(opened, served):
    tab = opened(400)
    translated(tab, "1 2 3")
    tab.locator("#show-beam").press("Enter")
    tab.locator("#beam svg").wait_for()
    tree = served[0].model.beam_tree("1 2 3")
    assert tab.locator("#beam text").count() == len(tree.nodes)
    assert tab.locator("#beam text.best").count() == len(tree.best)
    assert tab.evaluate("document.documentElement.scrollWidth") == 400


def test_texts_are_never_markup(opened):
    tab = opened()
    answers = {
        "translate": {"translatedText": SCRIPT, "alternatives": [f"2 {SCRIPT}"]},
        "attention": {
            "source": [SCRIPT, "</s>"],
            "target": [SCRIPT.replace(" ", "\u2581"), "</s>"],
            "weights": [[1, 0]] * 2,
        },
        "score": {
            "scores": [
                {
                    "score": 0,
                    "log_probability": 0,
                    "pieces": [SCRIPT],
                    "token_log_probabilities": [0],
                }
            ]
            * 2
        },
    }
    for name, answer in answers.items():
        fulfill(tab, name, answer)
    tab.fill("#text", SCRIPT)
    sync_api.expect(tab.locator("#translation")).to_have_text(SCRIPT)
    tab.locator(".word").first.hover()
    sync_api.expect(tab.locator("#attention")).to_contain_text("<script>fail()</script><img")
    tab.fill("#own", SCRIPT)
    tab.keyboard.press("Enter")
    sync_api.expect(tab.locator("#compared")).to_contain_text("<script>fail()</script><img")
    assert tab.locator("main img, main script").count() == 0
    markup = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(")
    assert not markup.search((PAGE / "page.js").read_text())


def test_errors_are_shown(opened, problems):
    tab = opened()
    tab.fill("#text", "1" * 401)
    sync_api.expect(tab.locator("#status")).to_have_text(
        "Invalid request: request (401) exceeds text limit (400)"
    )
    assert tab.locator("#size").text_content() == "401 of 400 characters"
    tab.route("**/translate", lambda route: route.abort())
    tab.fill("#text", "1")
    sync_api.expect(tab.locator("#status")).to_have_text("The server does not answer.")
    assert all("Failed to load resource" in problem for problem in problems)  # Chromium's own lines
    problems.clear()


@pytest.mark.slow
def test_a_key_is_asked_for_and_sent(opened, served):
    with listening(served, (KEY,)) as address:
        tab = opened(at=address)
        tab.fill("#key", KEY)
        assert translated(tab, "1 2") == served[0].model.translate(["1 2"])[0][0].text


def test_the_theme_follows_the_system_until_the_reader_chooses(opened):
    tab, seen = opened(), []
    for press in (False, True):
        for scheme in ("dark", "light"):
            tab.emulate_media(color_scheme=scheme)
            if press and scheme == "dark":
                tab.locator("#theme").press("Enter")
            seen.append(
                tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
            )
    assert seen == [True, False, False, False]
    assert tab.locator("#theme").get_attribute("aria-pressed") == "false"
