"""Imports point downwards, without cycles, and the flags of a command are parsed without its heavy
libraries.

All imports count, also those inside functions and those for type checkers only. Two modules are
exceptions: transformer/config/tables.py finds the tables of implementations, and
transformer/__init__.py the public interface.
"""

import ast
import json
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.scripts.test_sweep_checks import SWEEPS
from tests.test_configs import CONFIGS, NAMED

COMMANDS = {"train", "evaluate", "translate"}
# Lowest first.
FOLDERS = [
    *("support", "config", "distributed", "data", "model", "decoding"),
    *("training", "checkpoints", "hooks", "run"),
]
MODULES = [*Path("transformer").glob("*.py"), *Path("scripts").glob("*.py")]
PARSERS = [path for path in MODULES if "def make_parser" in path.read_text(encoding="utf-8")]
HEAVY = {
    *("jax", "flax", "optax", "orbax", "tensorboardX"),
    *("sacrebleu", "optuna", "sqlalchemy", "altair", "tensorflow_datasets"),
}


def imported_modules(path: Path) -> set[str]:
    """Returns the names of the modules that the file imports, and of the functions that it imports
    from them.
    """
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def part_of(name: str) -> str:
    """Returns the folder or top-level module of transformer/ that contains a module: "model",
    "files".
    """
    return name.split(".")[1]


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


FILES = {
    module_name(path): path
    for root in ("transformer", "scripts")
    for path in Path(root).rglob("*.py")
}
TABLES = "transformer.config.tables"
# what these modules may import from above
EXCEPTIONS = {TABLES: set(FILES), "transformer": {"transformer.api"}}


def imports_between_modules() -> dict[str, set[str]]:
    """Returns the modules of transformer/ and scripts/ that each of them imports."""
    graph: dict[str, set[str]] = {}
    for module, path in FILES.items():
        imported = imported_modules(path)
        containing = {name.rpartition(".")[0] for name in imported - FILES.keys()}
        graph[module] = (imported | containing) & FILES.keys() - {module}
    return graph


IMPORTS = imports_between_modules()


def imports_between_parts() -> dict[str, set[str]]:
    """Returns the parts of transformer/ that each part imports, without the exceptions."""
    graph: dict[str, set[str]] = {}
    for module, imported in IMPORTS.items():
        if module.startswith("transformer."):
            above = EXCEPTIONS.get(module, set())
            parts = {part_of(name) for name in imported - above if name.startswith("transformer.")}
            graph.setdefault(part_of(module), set()).update(parts - {part_of(module)})
    return graph


GRAPH = imports_between_parts()


def test_modules_do_not_import_each_other_in_cycles():
    graph = {
        module: imported - EXCEPTIONS.get(module, set()) for module, imported in IMPORTS.items()
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_only_the_checks_of_a_configuration_import_the_tables():
    users = {
        module.rpartition(".")[0] for module, imported in IMPORTS.items() if TABLES in imported
    }
    assert users == {"transformer.config"}


def test_parts_do_not_import_each_other_in_cycles():
    list(TopologicalSorter(GRAPH).static_order())  # raises CycleError


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_folders_below(folder):
    above = set(FOLDERS[FOLDERS.index(folder) + 1 :])
    assert not GRAPH[folder] & above


def test_nothing_in_the_package_imports_a_command():
    assert all(not imported & COMMANDS for imported in GRAPH.values())


def test_the_model_imports_no_other_part_but_the_lowest():
    assert GRAPH["model"] <= {"support", "config"}
    imported = set().union(*map(imported_modules, Path("transformer/model").glob("*.py")))
    modules = {
        ".".join(name.split(".")[:3]) for name in imported if name.startswith("transformer.")
    }
    allowed = {
        "transformer.config.types",
        "transformer.support.special_tokens",
        "transformer.support.processor",
    }
    assert {module for module in modules if not module.startswith("transformer.model")} <= allowed


@pytest.mark.parametrize(
    "name", ["beam_search", "text_decoder", "translation", "batches", "ensemble", "evaluation"]
)
def test_the_plain_decoder_imports_no_optional_feature(name):
    """Tables reach them: `strategies` the searches, `decoders` the decoders."""
    imported = {
        module.split(".")[2]
        for module in imported_modules(Path(f"transformer/decoding/{name}.py"))
        if module.startswith("transformer.decoding.")
    }
    searches = {"coverage", "ctc_search", "mbr", "sampling"}
    assert not imported & {"beam_tree", "control", "decoders", "documents", "reranking", *searches}


@pytest.mark.parametrize(
    "path", [Path("configs/rules.py"), *map(Path, CONFIGS + NAMED), *SWEEPS], ids=str
)
def test_configs_import_nothing_of_the_code(path):
    assert not {name.partition(".")[0] for name in imported_modules(path)} & {
        "transformer",
        "scripts",
        "tests",
    }


@pytest.mark.parametrize("path", sorted(Path("transformer").rglob("*.py")), ids=str)
def test_the_package_imports_neither_scripts_nor_tests(path):
    assert not {name.partition(".")[0] for name in imported_modules(path)} & {"scripts", "tests"}


def test_commands_parse_their_flags_without_heavy_libraries():
    """Also a wrong flag, an unknown key and a value of another type are refused without them."""
    names = {".".join(path.with_suffix("").parts) for path in PARSERS}
    script = f"""
import contextlib, importlib, json, sys
from transformer.support.errors import UserError

for name in {sorted(names)}:
    parser = importlib.import_module(name).make_parser()
    parser.format_help()
    for flag in (
        "--no_such_flag",
        "--config.model.no_such_key=1",
        "--config.seed=x",
        "--decoding.beam_size=x",
    ):
        with contextlib.suppress(UserError):
            parser.parse([flag])
            raise AssertionError(f"{{name}} accepts {{flag}}")
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(names) > 10 and not HEAVY & set(json.loads(done.stdout))
