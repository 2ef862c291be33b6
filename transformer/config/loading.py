"""Reading, checking, saving and comparing the configuration of a run.

A configuration is a `FrozenConfigDict` with exactly the keys of `configs/base.py`.
"""

import ast
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_collections

from transformer import files
from transformer.config import python_file
from transformer.config.combinations import COMBINATIONS
from transformer.config.keys import (
    describe,
    expected_types,
    flatten,
    freeze,
    nearest,
    show,
    typed,
    unknown_key,
    with_added,
)
from transformer.config.rules import RULES
from transformer.errors import UserError

FILE_NAME = "config.json"
SCHEMA_VERSION = 1  # of config.json; raised when a key of an older file would be read with another meaning


def load_file(path_and_argument: str, overrides: Iterable[tuple[str, str]]) -> ml_collections.FrozenConfigDict:
    """The checked configuration of `configs/X.py`, `configs/X.py:ARGUMENT` or a workdir's `config.json`.

    Args:
      path_and_argument: the file; what follows a colon is passed to its `get_config`.
      overrides: keys and values as typed, such as ("model.d_model", "256").

    Raises:
      UserError: the file cannot be used, or the configuration it gives is impossible.
    """
    name, _, argument = path_and_argument.partition(":")
    path = Path(name)
    if not path.is_file():
        there = [str(file) for file in path.parent.glob("*.py") if file.name != "__init__.py"]
        raise UserError(f"--config={name}: no such file{nearest(name, there)}")
    if path.suffix == ".json":
        return override(load(path), overrides, flag="--config.")
    if path.suffix != ".py":
        raise UserError(f"--config={name}: must be a .py file with get_config(), or the config.json of a run")
    return override(_from_python(path, argument), overrides, flag="--config.")


def override(
    config: ml_collections.ConfigDict, overrides: Iterable[tuple[str, str]], flag: str
) -> ml_collections.FrozenConfigDict:
    """`config` with the values given as text, read by the type each key has in `configs/base.py`, and checked.

    Args:
      config: complete configuration.
      overrides: keys and values as typed, such as ("decoding.beam_size", "4").
      flag: what the user typed before the key; named in errors.

    Raises:
      UserError: a key is unknown, a value is ill-typed, or the resulting configuration is impossible.
    """
    values, expected = {}, expected_types()
    for key, text in overrides:
        if key not in expected:
            raise unknown_key(f"{flag}{key}={text}", key)
        values[key] = _parse(key, text, flag, *expected[key])
    return with_values(config, values)


def with_values(config: ml_collections.ConfigDict, values: Mapping[str, Any]) -> ml_collections.FrozenConfigDict:
    """`config` with other values for some of its keys, "model.d_model" for one, checked.

    Raises:
      UserError: a key is unknown, a value is ill-typed, or the resulting configuration is impossible.
    """
    config = freeze(typed(flatten(config) | dict(values)))
    validate(config)
    return config


def validate(config: ml_collections.ConfigDict) -> None:
    """Raises `UserError`, naming key, value and what is allowed, unless a run with this configuration is possible."""
    flat = typed(flatten(config))
    for key, rule in RULES.items():
        if flat[key] is not None and not rule.holds(flat[key]):
            advice = nearest(str(flat[key]), rule.choices)
            raise UserError(f"config.{key}={show(flat[key])}: must be {rule.allowed}{advice}")
    for combination in COMBINATIONS:
        if combination.impossible(config):
            values = ", ".join(f"config.{key}={show(flat[key])}" for key in combination.keys)
            raise UserError(f"{values}: {combination.advice}")


def save(config: ml_collections.ConfigDict, workdir: Path) -> None:
    """Writes `workdir/config.json`, from which `load` makes an equal configuration."""
    files.write_json(workdir / FILE_NAME, {"schema_version": SCHEMA_VERSION} | config.to_dict())


def load(path: Path) -> ml_collections.FrozenConfigDict:
    """The configuration saved in `path`, a workdir or its `config.json`. Raises `UserError` if it cannot be used."""
    path = path / FILE_NAME if path.is_dir() else path
    try:
        nested = json.loads(path.read_text(encoding="utf-8"))
        version = nested.pop("schema_version")
        if version != SCHEMA_VERSION:
            raise UserError(f"schema_version={version}, must be {SCHEMA_VERSION}; use the commit that made the run")
        config = from_saved(flatten(ml_collections.ConfigDict(nested)))
        validate(config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, so {path.parent} is not the workdir of a run") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name the workdir of a run") from error
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: not a saved configuration ({type(error).__name__}: {error})") from None
    return config


def from_saved(flat: dict[str, Any]) -> ml_collections.FrozenConfigDict:
    """The configuration that was saved with these keys, perhaps before others were added, and JSON's types.

    Raises:
      UserError: it is none that this code could have saved.
    """
    return freeze(typed(with_added(flat)))


def difference(old: ml_collections.ConfigDict, new: ml_collections.ConfigDict) -> dict[str, str]:
    """Keys whose values differ, each with "OLD -> NEW"."""
    before, after = flatten(old), flatten(new)
    return {key: f"{show(before[key])} -> {show(after[key])}" for key in before if before[key] != after[key]}


def _from_python(path: Path, argument: str) -> ml_collections.ConfigDict:
    config = python_file.call(path, "get_config", *([argument] if argument else []))
    if not isinstance(config, ml_collections.ConfigDict):
        raise UserError(f"--config={path}: get_config() returned {type(config).__name__}, must be a ConfigDict")
    return config


def _parse(key: str, text: str, flag: str, kind: type, optional: bool) -> Any:
    if optional and text.lower() == "none":
        return None
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return ast.literal_eval(text) if kind is tuple else kind(text)
    except (ValueError, KeyError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise UserError(f"{flag}{key}={text}: must be {describe(kind, optional)}") from None
