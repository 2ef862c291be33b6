"""The tutorial's code runs, prints what the page shows and draws its pictures. tests/tutorial.py
rewrites both.
"""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.tutorial import BLOCK, NOTEBOOK, PAGE, PICTURES, SETUP, notebook, printed, shown

pytestmark = pytest.mark.long

NUMBER = re.compile(r"-?\d+\.\d*")
MOST_BYTES = 60_000  # of a picture
# by which numbers may differ: another processor rounds otherwise, and training amplifies that
LAST_DIGITS = 1.5


def words(text: str) -> list[str]:
    """Returns the words and brackets of a text, in which "#" replaces the numbers with a decimal
    point.
    """
    return re.findall(r"[^\s\[\]]+|[\[\]]", NUMBER.sub("#", text))


def numbers(text: str) -> list[tuple[float, float]]:
    """Returns the numbers with a decimal point, and the unit of the last digit of each."""
    return [
        (float(number), 10.0 ** -len(number.partition(".")[2])) for number in NUMBER.findall(text)
    ]


def agree(output: str, expected: str) -> bool:
    pairs = zip(numbers(output), numbers(expected), strict=False)
    return words(output) == words(expected) and all(
        abs(a - b) <= LAST_DIGITS * unit for (a, _), (b, unit) in pairs
    )


def test_the_notebook_is_the_page():
    text = PAGE.read_text(encoding="utf-8")
    assert NOTEBOOK.read_text(encoding="utf-8") == notebook(text), "run python -m tests.tutorial"
    cells = json.loads(notebook(text))["cells"]
    first, *code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert "".join(first["source"]) == SETUP
    assert ["".join(cell["source"]) + "\n" for cell in code] == [
        block["code"] for block in BLOCK.finditer(text)
    ]
    outputs = [
        "".join(line for stream in cell["outputs"] for line in stream["text"]) for cell in code
    ]
    assert outputs == shown(text)
    prose = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert re.sub(r"\s", "", prose) == re.sub(r"\s", "", BLOCK.sub("", text))


def test_the_first_cell_finds_the_project(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    root = Path.cwd()
    monkeypatch.chdir(root / "docs")
    exec(SETUP, {})
    assert Path.cwd() == root and sys.path[0] == str(root)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="Clone the repository"):
        exec(SETUP, {})


@pytest.mark.slow
def test_the_program_prints_and_draws_what_the_page_shows(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    pictures = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.iterdir()}
    monkeypatch.chdir(tmp_path)
    PICTURES.mkdir(parents=True)
    for output, expected in zip(printed(text), shown(text), strict=True):
        assert agree(output, expected), (
            f"the page shows:\n{expected}\nthe program prints:\n{output}"
        )
    drawn = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.iterdir()}
    assert set(re.findall(r"!\[.*?\]\(tutorial/(.*?)\)", text)) == set(drawn) == set(pictures)
    for name, picture in drawn.items():
        # Colours and coordinates are numbers of the trained model.
        assert re.sub(r"-?\d+(\.\d+)?", "#", picture) == re.sub(
            r"-?\d+(\.\d+)?", "#", pictures[name]
        ), name
        assert len(pictures[name]) < MOST_BYTES, name


@pytest.mark.parametrize(
    ("output", "is_equal"),
    [
        ("loss 0.67\n[-0.00 1.00]", True),
        ("loss 0.68 [0.00 1.00]", True),
        ("loss 0.69 [0.00 1.00]", False),
    ]
    + [
        ("nll 0.67 [0.00 1.00]", False),
        ("loss 0.67 [0.00 1.00 1.00]", False),
        ("loss 0.67 [0 1.00]", False),
    ],
)
def test_numbers_may_differ_in_their_last_digit(output, is_equal):
    assert agree(output, "loss 0.67 [ 0.00 1.00]") is is_equal
