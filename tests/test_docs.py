"""The README and docs/ name only what exists: commands with their flags, paths, modules,
configuration keys, Python.
"""

import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

from scripts.distillation import pipeline
from scripts.sweeping import description
from tests import tutorial
from tests.checkpoints.workdirs import make_workdir
from tests.scripts.calibrated import write_calibration
from transformer.config import loading
from transformer.config.keys import declared_keys, flatten, validated_config

# Pages of the site only, with directives of Sphinx, which `make docs` checks.
OF_THE_SITE = {Path("docs/index.md"), Path("docs/reference.md")}
PAGES = [Path("README.md"), *sorted({*Path("docs").glob("*.md")} - OF_THE_SITE)]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(TEXT)
PROSE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
SPANS = sorted(set(re.findall(r"`([^`\n]+)`", PROSE)))
# Blocks without a language hold commands; a bash block is a script, of which only the project's
# commands are checked.
LINES = [
    (language, line)
    for language, text in BLOCKS
    if language in ("", "bash")
    for line in text.replace("\\\n", " ").splitlines()
]
# tests/test_tutorial.py runs the blocks of the tutorial, which are one program.
EXAMPLES = [
    text
    for page in PAGES
    if page != tutorial.PAGE
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8"))
    if language == "python"
]
COMMANDS = sorted({line for language, line in LINES if line and (not language or " -m " in line)})
FOLDERS = ("configs", "transformer", "scripts", "tests", "docs", ".ci")
PATHS = [
    span for span in SPANS if span.partition("/")[0] in FOLDERS and "/" in span and " " not in span
]
MODULES = [span for span in SPANS if re.fullmatch(r"(?:transformer|scripts)\.[\w.]+", span)]
KEYS = [
    key[1]
    for span in SPANS
    if (key := re.match(r"(?:--)?config\.(\w+(?:\.\w+)?)", span)) and key[1] != "json"
]
LINKS = [
    (page, link)
    for page in PAGES
    for link in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8"))
]


def make_targets() -> set[str]:
    return set(re.findall(r"^(\w+):", Path("Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_exists_and_takes_its_flags(line):
    for part in line.split("|"):
        words = shlex.split(part.partition(" < ")[0])
        if words[0] == "make":
            assert words[1] in make_targets()
        elif words[0] == "source":
            assert words[1] == ".venv/bin/activate"
        elif words[1:3] in (["-m", "venv"], ["-m", "pip"]):
            assert words[-1] == ".venv" or words[3] == "install"
        elif "-m" in words:
            module, *flags = words[words.index("-m") + 1 :]
            arguments = importlib.import_module(module).make_parser().parse(flags)
            if getattr(arguments, "config", None) and not arguments.config.startswith("runs/"):
                loading.load_file(arguments.config, arguments.overrides)
            else:
                assert {key for key, _ in arguments.overrides} <= set(declared_keys())
        else:
            assert words[0] in ("echo", "printf") or words[0].startswith(".venv/bin/")


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path):
    assert Path(path).exists()


@pytest.mark.parametrize("module", MODULES)
def test_every_module_can_be_imported(module):
    pkgutil.resolve_name(module)  # or is a name in one


@pytest.mark.parametrize("key", KEYS)
def test_every_configuration_key_exists(key):
    assert any(name == key or name.startswith(f"{key}.") for name in declared_keys())


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_every_link_leads_to_a_file(page, link):
    assert (page.parent / link).exists()


@pytest.fixture(scope="module")
def folder_with_runs(tmp_path_factory) -> Path:
    """Returns a folder with runs/multi30k, a random model with one layer and bytes as tokens."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "runs").mkdir()
    settings = {
        "data.source": "text",
        "decoding.beam_size": "4",
        "decoding.max_source_length": "64",
    }
    settings |= {
        "tokenizer.kind": "bpe",
        "tokenizer.byte_fallback": "true",
        "tokenizer.vocab_size": "270",
    }
    path = make_workdir(folder / "runs" / "multi30k", steps=(10,), **settings)
    write_calibration(path, {"intercept": 3.0, "mean": 1.0, "lowest": 0.0})
    return folder


@pytest.mark.first_case
@pytest.mark.parametrize("code", EXAMPLES)
def test_the_python_runs_and_gives_the_shapes_that_it_names(code, request, monkeypatch):
    loads = "transformer.load(" in code
    if loads:
        monkeypatch.chdir(request.getfixturevalue("folder_with_runs"))
    names: dict = {}
    exec(code, names)
    if "get_sweep" in names:
        names["get_sweep"](description)
        return
    if "get_plan" in names:
        pipeline.in_order(names["get_plan"](pipeline))
        return
    if "get_config" in names:
        validated_config(flatten(names["get_config"]()))
        return
    if loads:
        return  # the code asserts its shapes
    shapes = re.findall(r"^(\w+) = .*?#.*= (\([\d, ]+\))$", code, re.MULTILINE)
    assert shapes
    for name, shape in shapes:
        assert names[name].shape == eval(shape), name


def test_the_docs_install_the_pinned_version_of_jax():
    commands = [line for line in TEXT.splitlines() if re.search(r"\bjax\[\w+\]", line)]
    assert commands and all(
        re.search(r' install -r requirements\.txt "jax\[\w+\]"$', line) for line in commands
    )


def test_the_readme_stays_short():
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 180
