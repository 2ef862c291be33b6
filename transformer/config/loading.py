"""Functions that read, override, save and compare configurations.

A configuration is a `FrozenConfigDict` with all keys of `configs/base.py`.
"""

import ast
import importlib.util
import os
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_collections
from absl import logging

from configs import base
from configs.rules import UnknownName
from transformer.config import keys
from transformer.config.types import Config
from transformer.support import files
from transformer.support.errors import UserError

FILE_NAME = "config.json"
# The version of config.json, which is raised when a key is renamed or changes its meaning.
SCHEMA_VERSION = 2

# Keys and values as typed, such as ("model.d_model", "256").
Overrides = Iterable[tuple[str, str]]


def load_file(path_and_argument: str, overrides: Overrides) -> ml_collections.FrozenConfigDict:
    """Returns a configuration to train with.

    It comes from `configs/X.py`, from `configs/X.py:ARGUMENT`, which passes the argument to
    `get_config`, or from a workdir. Warm-up and validation interval are reduced to the length of
    the run. Raises UserError if the file cannot be used, or its configuration, with the overrides,
    is not allowed.
    """
    config = _read_config(path_and_argument)

    # Overrides are set in the ConfigDict, so that values which refer to these keys follow.
    new_values = parse_overrides(overrides, "--config.")
    if not isinstance(config, ml_collections.FrozenConfigDict):
        declared = keys.flatten(config)
        with config.unlocked(), config.ignore_type():
            config.update_from_flattened_dict(
                {name: value for name, value in new_values.items() if name in declared}
            )
    # A short run, such as a test of a config, needs no change of these two keys.
    values = keys.coerce_types(keys.flatten(config) | new_values)
    steps = values["training.steps"]
    for name in ("optimizer.warmup_steps", "training.eval_every"):
        if values[name] > steps > 0:
            logging.warning("%s=%d is reduced to training.steps=%d.", name, values[name], steps)
            values[name] = steps
    config = keys.validated_config(values)
    keys.check_for_training(config)
    return config


def _read_config(path_and_argument: str) -> Config:
    """Returns the configuration in a file or a workdir, before its overrides."""
    # The name of a file that exists may itself have a colon.
    name = path_and_argument
    argument = ""
    if not os.path.exists(name):
        name, _, argument = path_and_argument.partition(":")
    path = find_file("--config", f"{name}/{FILE_NAME}" if os.path.isdir(name) else name)
    if path.suffix == ".json":
        return load(path)
    config = call_function(path, "get_config", *([argument] if argument else []))
    if not isinstance(config, ml_collections.ConfigDict):
        raise UserError(
            f"--config={path}: get_config() returned {type(config).__name__}, must be a ConfigDict"
        )
    return config


def find_file(flag: str, name: str) -> Path:
    """Returns the path of a file; `configs/X.py` may be a file of the installed package.

    Raises UserError, which begins with `flag`, if there is no such file.
    """
    path = Path(name)
    if name.startswith("configs/") and not os.path.isfile(name):
        path = Path(base.__file__).parent.parent / name
    # Path.is_file would raise an error for a name that is too long.
    if not os.path.isfile(path):
        present = [
            str(file) for file in Path(name).parent.glob("*.py") if file.name != "__init__.py"
        ]
        raise UserError(f"{flag}={name}: no such file{keys.nearest(name, present)}")
    return path


def call_function(path: Path, function: str, *arguments: Any) -> Any:
    """Calls a config's `get_config` or a sweep's `get_sweep`.

    Raises UserError if there is none, or the file fails.
    """
    if path.suffix != ".py":
        raise UserError(f"{path}: must be a .py file that defines {function}()")
    # The file is not imported by its name, so that files of the same name do not collide.
    spec = importlib.util.spec_from_file_location("python_file", path.resolve())
    assert spec is not None and spec.loader is not None  # Python files have a loader
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise UserError(f"does not define {function}()")
        return getattr(module, function)(*arguments)
    except (UserError, UnknownName) as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        # The last line of the file itself, which may have called other code.
        where = ""
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(path.resolve()):
                where = f"line {frame.lineno}: "
        raise UserError(f"{path}: {where}{type(error).__name__}: {error}") from error


def parse_overrides(overrides: Overrides, flag: str) -> dict[str, Any]:
    """Returns the values of overrides, by key.

    Raises UserError, which begins with `flag`, for an unknown key or a value of another type.
    """
    declared = keys.declared_keys()
    values = {}
    for name, text in overrides:
        is_text = name not in declared or declared[name].type is str
        values[name] = text if is_text else _literal(text)
    return keys.coerce(values, flag)


def override(config: Config, overrides: Overrides) -> ml_collections.FrozenConfigDict:
    """Returns the configuration with the values of flags `--GROUP.KEY=VALUE`.

    Raises UserError if it is not allowed.
    """
    return with_values(config, parse_overrides(overrides, "--"))


def with_values(config: Config, values: Mapping[str, Any]) -> ml_collections.FrozenConfigDict:
    """Returns the configuration with other values for some keys.

    Raises UserError if it is not allowed.
    """
    return keys.validated_config(keys.flatten(config) | dict(values))


def save(config: Config, workdir: Path) -> None:
    """Writes `workdir/config.json`, from which `load` makes an equal configuration."""
    files.write_json(workdir / FILE_NAME, {"schema_version": SCHEMA_VERSION} | config.to_dict())


def load(path: Path) -> ml_collections.FrozenConfigDict:
    """Returns the configuration of a workdir or of its `config.json`.

    Raises UserError if it is not allowed.
    """
    path = path / FILE_NAME if path.is_dir() else path
    return files.read_json(path, _parse, "name the workdir of a run, or correct the file")


def _parse(nested: dict[str, Any]) -> ml_collections.FrozenConfigDict:
    # The file has the configuration and its schema version side by side.
    version = nested.pop("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"schema_version={version}, must be {SCHEMA_VERSION}; use the commit that made the run"
        )
    return keys.recorded_config(keys.flatten(ml_collections.ConfigDict(nested)))


def difference(old: Config, new: Config) -> dict[str, str]:
    """Returns the keys with different values, each with "OLD -> NEW"."""
    new_values = keys.flatten(new)
    return {
        key: f"{keys.format_value(value)} -> {keys.format_value(new_values[key])}"
        for key, value in keys.flatten(old).items()
        if value != new_values[key]
    }


def _literal(text: str) -> Any:
    """Returns the value of a Python literal, or the text itself if it is not one.

    `true`, `false` and `none` are literals too.
    """
    try:
        # Python's literals begin with a capital letter.
        return ast.literal_eval(text.title() if text.lower() in ("true", "false", "none") else text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
