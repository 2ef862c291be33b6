"""Imports point downwards: no module or folder of transformer/ imports one above it, and there are no cycles."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.scripts.test_sweep_checks import SWEEPS
from tests.test_configs import CONFIGS, NAMED

COMMANDS = {"train", "evaluate", "translate"}
# Lowest first.
FOLDERS = ["config", "distributed", "data", "model", "decoding", "training", "checkpoints", "planning", "run"]


def imported_modules(path: Path) -> set[str]:
    """Returns the names of the modules that the file imports, and of the functions that it imports from them."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def part_of(name: str) -> str:
    """Returns the folder or top-level module of transformer/ that contains a module: "model", "files"."""
    return name.split(".")[1]


def imports_between_parts() -> dict[str, set[str]]:
    """Returns the parts of transformer/ that each part imports."""
    graph: dict[str, set[str]] = {}
    for path in Path("transformer").rglob("*.py"):
        part = part_of(".".join(path.with_suffix("").parts))
        imported = {part_of(name) for name in imported_modules(path) if name.startswith("transformer.")}
        graph.setdefault(part, set()).update(imported - {part})
    return graph


GRAPH = imports_between_parts()


def test_parts_do_not_import_each_other_in_cycles():
    list(TopologicalSorter(GRAPH).static_order())  # raises CycleError


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_folders_below(folder):
    above = set(FOLDERS[FOLDERS.index(folder) + 1 :])
    assert not GRAPH[folder] & above


def test_nothing_in_the_package_imports_a_command():
    assert all(not imported & COMMANDS for imported in GRAPH.values())


def test_the_model_imports_only_special_tokens_and_config_types():
    assert GRAPH["model"] <= {"special_tokens", "config_types"}


@pytest.mark.parametrize("path", [Path("configs/rules.py"), *map(Path, CONFIGS + NAMED), *SWEEPS], ids=str)
def test_configs_import_nothing_of_the_code(path):
    assert not {name.partition(".")[0] for name in imported_modules(path)} & {"transformer", "scripts", "tests"}


@pytest.mark.parametrize("path", sorted(Path("transformer").rglob("*.py")), ids=str)
def test_the_package_imports_neither_scripts_nor_tests(path):
    assert not {name.partition(".")[0] for name in imported_modules(path)} & {"scripts", "tests"}
