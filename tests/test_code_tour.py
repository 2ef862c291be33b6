"""docs/code.md: each tour states how many lines run and lists the files with most of them.

No module is left out.
"""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.long

PAGE = Path("docs/code.md")
TEXT = PAGE.read_text(encoding="utf-8")
TOURS = ["The model", "The loss and the step", "The training loop", "The search", "The data"]
STATEMENT = re.compile(
    r"(\d+) lines run, (\d+) of them outside the files of the other tours\. .* (\d+) % of these\."
)


class Count(NamedTuple):
    """The lines that run in a tour, those outside the files of the other tours, and the percentage
    of these in its own.

    The lines are rounded to tens.
    """

    total: int
    rest: int
    share: int

    def __str__(self) -> str:
        return (
            f"{self.total} lines run, {self.rest} of them outside the files of the other tours. "
            f"The files below have {self.share} % of these."
        )


def split_sections() -> dict[str, str]:
    """Returns the text below each second-level heading."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def linked_files(text: str) -> list[str]:
    """Returns the targets of links to files of transformer/, such as `transformer/train.py`."""
    return re.findall(r"\]\(\.\./(transformer/[\w/]+\.py)\)", text)


def named_files() -> set[str]:
    """Returns the files that the page links or names in code font, such as `model/linear.py`, below
    transformer/.
    """
    return {
        *linked_files(TEXT),
        *(f"transformer/{name}" for name in re.findall(r"`([\w/]+\.py)`", TEXT)),
    }


SECTIONS = split_sections()
FILES = {tour: linked_files(SECTIONS[tour]) for tour in TOURS}  # in the order of reading


@pytest.fixture(scope="module")
def counts(tmp_path_factory) -> dict[str, Count]:
    """Returns what tiny runs count for each tour, which takes half a minute."""
    command = [sys.executable, "-m", "tests.executed_lines", str(tmp_path_factory.mktemp("tours"))]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return {tour: count(tour, executed) for tour, executed in json.loads(done.stdout).items()}


def count(tour: str, executed: dict[str, list[int]]) -> Count:
    elsewhere = {file for other in TOURS if other != tour for file in FILES[other]}
    lines = {file: len(numbers) for file, numbers in executed.items()}
    rest = sum(number for file, number in lines.items() if file not in elsewhere)
    own = sum(lines.get(file, 0) for file in FILES[tour])
    return Count(round(sum(lines.values()), -1), round(rest, -1), round(100 * own / rest))


def test_the_tours_stand_in_the_order_of_reading():
    assert [name for name in SECTIONS if name in TOURS] == TOURS


def test_no_file_is_in_two_tours():
    files = [file for tour in TOURS for file in FILES[tour]]
    assert len(files) == len(set(files))


@pytest.mark.slow
@pytest.mark.parametrize("tour", TOURS)
def test_a_tour_states_how_many_lines_run(counts, tour):
    """The numbers may be off by a tenth, and the share by 5, so that not every change of the code
    changes the page.
    """
    actual = counts[tour]
    message = f"docs/code.md, {tour}: {actual}"
    stated = STATEMENT.search(" ".join(SECTIONS[tour].split()))
    assert stated, message
    total, rest, share = map(int, stated.groups())
    assert total % 10 == 0 and abs(total - actual.total) <= 0.1 * actual.total, message
    assert rest % 10 == 0 and abs(rest - actual.rest) <= 0.1 * actual.rest, message
    assert abs(share - actual.share) <= 5, message


@pytest.mark.slow
@pytest.mark.parametrize("tour", TOURS)
def test_a_tour_lists_the_files_with_at_least_half_of_its_lines(counts, tour):
    assert counts[tour].share >= 50, f"docs/code.md, {tour}: {counts[tour]}"


def test_the_page_names_every_module():
    modules = set()
    for path in Path("transformer").rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        if body and not (len(body) == 1 and ast.get_docstring(ast.Module(body, []))):
            modules.add(str(path))
    assert modules - named_files() == set()


def test_every_file_that_the_page_names_exists():
    assert [file for file in sorted(named_files()) if not Path(file).is_file()] == []
