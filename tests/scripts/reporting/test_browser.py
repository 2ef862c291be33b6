"""The report in a browser: without errors, at small and large sizes, in light and dark, by mouse
and by keyboard.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.slow

# Events of a changed preference come before the callbacks of the next frame.
THEME_AFTER_A_FRAME = """() => new Promise(done => requestAnimationFrame(
    () => requestAnimationFrame(() => done(document.documentElement.dataset.theme))))"""


@pytest.fixture
def opened(browser, page) -> Iterator:
    """Returns a function that opens the report.

    At the end there must be no error, warning or request.
    """
    problems, contexts = [], []

    def open_page(width: int = 1600, scheme: str = "light", path: Path = page):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on(
            "request",
            lambda request: (
                None if request.url.startswith(("file:", "data:")) else problems.append(request)
            ),
        )
        tab.goto(path.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def charts(tab) -> int:
    """Scrolls through the page, which draws the charts that come into view, and returns their
    number.
    """
    tab.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true })")
    elements = tab.locator("[data-chart]")
    for number in range(elements.count()):
        elements.nth(number).scroll_into_view_if_needed()
        elements.nth(number).locator("canvas").first.wait_for()
    return elements.count()


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light")])
def test_all_charts_are_drawn_within_the_width_of_the_window(opened, width, scheme):
    tab = opened(width, scheme)
    assert charts(tab) >= 10
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme


def test_the_search_finds_lines_and_says_how_many(opened):
    tab = opened()
    assert tab.locator("#found").text_content() == "5 of 5 lines"
    tab.fill("#query", "4 <SCRIPT>F")
    assert tab.locator("#found").text_content() == "1 of 5 lines"
    assert "4 <script>fail(" in tab.locator("#translations").text_content()
    tab.fill("#query", "absent")
    assert tab.locator("#found").text_content() == "0 of 5 lines"
    assert tab.locator("#translations").text_content() == "" and tab.locator("#more").is_hidden()


def test_the_translations_of_one_run_can_be_sorted(opened, page_of_one):
    tab = opened(path=page_of_one)

    def column(term: str) -> list[float]:
        return [
            float(text) for text in tab.locator(f"dt:text-is('{term}') + dd").all_text_contents()
        ]

    assert len(column("chrF")) == 5 and column("chrF") == sorted(column("chrF"))  # at first
    tab.select_option("#order", label="model score, worst first")
    assert column("line") == [3, 5, 1, 4, 2] and column("model score") == [-5, -4, -3, -2, -1]
    tab.select_option("#order", label="characters more than the reference, worst first")
    sizes = [abs(number) for number in column("characters more than the reference")]
    assert sizes == sorted(sizes, reverse=True)
    tab.select_option("#order", label="line")
    assert column("line") == [1, 2, 3, 4, 5]


def test_heads_parts_and_sentences_can_be_chosen_by_keyboard(opened):
    tab = opened()
    heads = tab.locator("#attention-heads button")
    assert heads.count() == 2 and tab.locator("#attention-head").text_content() == "Layer 1, head 1"
    heads.nth(1).focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#attention-head").text_content() == "Layer 1, head 2"
    assert [heads.nth(i).get_attribute("aria-pressed") for i in range(2)] == ["false", "true"]
    tab.locator("#attention-map canvas").wait_for()
    before = tab.locator("#attention-texts").text_content()
    tab.select_option("#attention-sentence", "1")
    tab.select_option("#attention-part", "decoder")
    assert tab.locator("#attention-texts").text_content() != before
    assert tab.locator("#attention-head").text_content() == "Layer 1, head 2"


def test_the_theme_can_be_changed_and_charts_follow(opened):
    tab = opened()
    button = tab.locator("#theme")
    button.press("Enter")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert button.get_attribute("aria-pressed") == "true"
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
    assert charts(tab) >= 10


def test_the_theme_follows_the_system_until_the_reader_chooses(opened):
    tab = opened()
    seen = []
    for scheme in ("dark", "light"):
        tab.emulate_media(color_scheme=scheme)
        seen.append(tab.evaluate(THEME_AFTER_A_FRAME))
    tab.locator("#theme").press("Enter")
    for scheme in ("dark", "light"):
        tab.emulate_media(color_scheme=scheme)
        seen.append(tab.evaluate(THEME_AFTER_A_FRAME))
    assert seen == ["dark", "light", "dark", "dark"]


def test_a_zoom_moves_all_curves(opened):
    tab = opened()
    first, second = (
        tab.locator(f"[data-chart=curve-{name}]") for name in ("train-loss", "valid-bleu")
    )
    for curve in (second, first):
        curve.scroll_into_view_if_needed()
        curve.locator("canvas").wait_for()
    before = second.screenshot()
    first.hover()
    tab.mouse.wheel(0, -400)
    tab.wait_for_timeout(300)
    second.scroll_into_view_if_needed()
    assert second.screenshot() != before
