"""The tutorial's code runs, prints what the page shows and draws its pictures. tests/tutorial.py rewrites both."""

import re

import pytest

from tests.tutorial import PAGE, PICTURES, printed, shown

pytestmark = pytest.mark.long

NUMBER = re.compile(r"-?\d+\.\d*")
MOST_BYTES = 60_000  # of a picture
LAST_DIGITS = 1.5  # by which numbers may differ: another processor rounds otherwise, and training amplifies that


def words(text: str) -> list[str]:
    """Returns the words and brackets of a text, in which "#" replaces the numbers with a decimal point."""
    return re.findall(r"[^\s\[\]]+|[\[\]]", NUMBER.sub("#", text))


def numbers(text: str) -> list[tuple[float, float]]:
    """Returns the numbers with a decimal point, and the unit of the last digit of each."""
    return [(float(number), 10.0 ** -len(number.partition(".")[2])) for number in NUMBER.findall(text)]


def agree(output: str, expected: str) -> bool:
    pairs = zip(numbers(output), numbers(expected), strict=False)
    return words(output) == words(expected) and all(abs(a - b) <= LAST_DIGITS * unit for (a, _), (b, unit) in pairs)


@pytest.mark.slow
def test_the_program_prints_and_draws_what_the_page_shows(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    pictures = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.iterdir()}
    monkeypatch.chdir(tmp_path)
    PICTURES.mkdir(parents=True)
    for output, expected in zip(printed(text), shown(text), strict=True):
        assert agree(output, expected), f"the page shows:\n{expected}\nthe program prints:\n{output}"
    drawn = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.iterdir()}
    assert set(re.findall(r"!\[.*?\]\(tutorial/(.*?)\)", text)) == set(drawn) == set(pictures)
    for name, picture in drawn.items():
        # Colours and coordinates are numbers of the trained model.
        assert re.sub(r"-?\d+(\.\d+)?", "#", picture) == re.sub(r"-?\d+(\.\d+)?", "#", pictures[name]), name
        assert len(pictures[name]) < MOST_BYTES, name


@pytest.mark.parametrize(
    ("output", "is_equal"),
    [("loss 0.67\n[-0.00 1.00]", True), ("loss 0.68 [0.00 1.00]", True), ("loss 0.69 [0.00 1.00]", False)]
    + [("nll 0.67 [0.00 1.00]", False), ("loss 0.67 [0.00 1.00 1.00]", False), ("loss 0.67 [0 1.00]", False)],
)
def test_numbers_may_differ_in_their_last_digit(output, is_equal):
    assert agree(output, "loss 0.67 [ 0.00 1.00]") is is_equal
