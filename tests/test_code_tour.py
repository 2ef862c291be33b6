"""docs/code.md lists all that a reader meets, and each tour keeps to its limits of files and lines."""

import re
from pathlib import Path

import pytest

from tests.test_imports import imported_modules

TOUR = Path("docs/code.md")
LIMITS = re.compile(r"At most (\d+) files and (\d+) lines")


def sections() -> dict[str, str]:
    """Returns the text below each second-level heading that states limits."""
    parts = re.split(r"^## (.+)$", TOUR.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: text for name, text in zip(parts[1::2], parts[2::2], strict=True) if LIMITS.search(text)}


SECTIONS = sections()
EVERYWHERE = TOUR.read_text(encoding="utf-8").partition("## ")[0]


def listed_files(text: str) -> list[Path]:
    """Returns the files of the tour: the links in the first column of its table."""
    return [
        Path("docs", target).resolve().relative_to(Path.cwd())
        for target in re.findall(r"^\| \[.*?\]\((.*?)\)", text, re.M)
    ]


def named_files(text: str) -> set[Path]:
    """Returns the files that the text names in code font, such as `model/linear.py`, below transformer/."""
    return {Path("transformer", name) for name in re.findall(r"`([\w/]+\.py)`", text)}


def test_the_tour_has_the_four_parts():
    assert [*SECTIONS] == ["Attention", "A training step", "The training loop", "Translation"]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_tour_keeps_to_its_limits(name):
    files = listed_files(SECTIONS[name])
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    most_files, most_lines = map(int, LIMITS.search(SECTIONS[name]).groups())
    assert files and len(files) <= most_files
    assert lines <= most_lines


@pytest.mark.parametrize("name", SECTIONS)
def test_a_tour_names_each_module_that_its_files_import(name):
    text = SECTIONS[name]
    known = {*listed_files(text)} | named_files(EVERYWHERE + text)
    assert all(path.exists() for path in known)
    for path in listed_files(text):
        modules = {module for module in imported_modules(path) if module.startswith("transformer.")}
        missing = {file for file in map(module_file, modules) if file not in known}
        assert not missing, f"{path} imports {sorted(map(str, missing))}, which the tour does not name"


def module_file(module: str) -> Path:
    """Returns the file of a module, or of a name imported from it."""
    path = Path(module.replace(".", "/"))
    return next(
        file
        for file in (path.with_suffix(".py"), path.parent.with_suffix(".py"), path.parent / "__init__.py")
        if file.exists()
    )
