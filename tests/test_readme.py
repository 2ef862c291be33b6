"""What the README says exists and runs: commands with their flags, paths, config keys, and the Python in it."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from transformer.config import loading as configuration
from transformer.config.keys import expected_types

README = Path("README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
JOINED = [(language, text.replace("\\\n", " ")) for language, text in BLOCKS if language in ("", "bash")]
LINES = [(language, line) for language, text in JOINED for line in text.splitlines()]
# A script has other commands too, which are none of ours.
COMMANDS = [line for language, line in LINES if line and (not language or " -m " in line)]
SPANS = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL))
FOLDERS = ("configs", "transformer", "scripts", "tests", ".ci")


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_exists_and_takes_its_flags(line):
    for part in re.split(r"[|]", line):
        words = shlex.split(part.partition(" < ")[0])
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", Path("Makefile").read_text(), re.MULTILINE)
        elif words[0] == "source" or words[1:3] in (["-m", "venv"], ["-m", "pip"]):
            assert words[-1] in (".venv", ".venv/bin/activate") or words[3] == "install"
        elif "-m" in words:
            name, *flags = words[words.index("-m") + 1 :]
            arguments = importlib.import_module(name).make_parser().parse(flags)
            if getattr(arguments, "config", None) and not arguments.config.startswith("runs/"):
                configuration.load_file(arguments.config, arguments.overrides)
            else:
                assert {key for key, _ in arguments.overrides} <= set(expected_types())
        else:
            assert words[0] in ("echo", "printf") or words[0].startswith(".venv/bin/")


@pytest.mark.parametrize("span", SPANS)
def test_every_path_and_key_exists(span):
    if span.partition("/")[0] in FOLDERS and " " not in span:
        assert Path(span).exists()
    if module := re.fullmatch(r"(?:python -m )?((?:transformer|scripts)\.[\w.]+)", span):
        importlib.import_module(module[1])
    if (key := re.match(r"(?:--)?config\.(\w+(?:\.\w+)?)", span)) and key[1] != "json":
        assert any(name == key[1] or name.startswith(f"{key[1]}.") for name in expected_types())
    if span.startswith("make "):
        assert re.search(rf"^{span.split()[1]}:", Path("Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("code", [text for language, text in BLOCKS if language == "python"])
def test_the_python_runs_and_says_the_right_shapes(code):
    names: dict = {}
    exec(code, names)
    if "get_sweep" in names:
        names["get_sweep"]()
        return
    shapes = re.findall(r"^(\w+) = .*?#.*= (\([\d, ]+\))$", code, re.MULTILINE)
    assert shapes
    for name, shape in shapes:
        assert names[name].shape == eval(shape), name


def test_the_requirements_are_those_of_the_accelerators():
    assert set(re.findall(r"jax\[\w+\](==[\d.]+)", README)) == set(
        re.findall(r"^jax(==[\d.]+)$", Path("requirements.txt").read_text(), re.MULTILINE)
    )
