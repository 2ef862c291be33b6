"""Reading, overriding, saving and comparing configurations: `FrozenConfigDict`s with all keys of
`configs/base.py`.
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
SCHEMA_VERSION = 2  # of config.json; raised when a key is renamed or changes its meaning

Overrides = Iterable[tuple[str, str]]  # keys and values as typed, such as ("model.d_model", "256")


def load_file(path_and_argument: str, overrides: Overrides) -> ml_collections.FrozenConfigDict:
    """Returns the configuration of `configs/X.py`, `configs/X.py:ARGUMENT` or a workdir, to train
    with.

    `get_config` receives the argument. Warm-up and validation interval are reduced to the length of
    the run. Raises UserError if the file cannot be used, or its configuration, with the overrides,
    is not allowed.
    """
    name, argument = path_and_argument, ""
    if not os.path.exists(name):  # else a name has a colon
        name, _, argument = path_and_argument.partition(":")
    path = find_file("--config", f"{name}/{FILE_NAME}" if os.path.isdir(name) else name)
    if path.suffix == ".json":
        config = load(path)
    elif path.suffix == ".py":
        config = call_function(path, "get_config", *([argument] if argument else []))
    else:
        raise UserError(
            f"--config={path}: must be a .py file that defines get_config(), or the config.json of a run"
        )
    if not isinstance(config, ml_collections.ConfigDict):
        raise UserError(
            f"--config={path}: get_config() returned {type(config).__name__}, must be a ConfigDict"
        )
    given = parse_overrides(overrides, "--config.")
    if not isinstance(config, ml_collections.FrozenConfigDict):
        present = keys.flatten(config)
        # so that values which refer to these keys follow
        with config.unlocked(), config.ignore_type():
            config.update_from_flattened_dict(
                {name: value for name, value in given.items() if name in present}
            )
    values = keys.coerce_types(keys.flatten(config) | given)
    steps = values["training.steps"]
    for name in ("optimizer.warmup_steps", "training.eval_every"):
        if values[name] > steps > 0:
            logging.warning("%s=%d is reduced to training.steps=%d.", name, values[name], steps)
            values[name] = steps
    config = keys.checked(values)
    keys.check_for_training(config)
    return config


def find_file(flag: str, name: str) -> Path:
    """Returns the path of a file that the user names; without one, configs/... means the installed
    package's.

    Raises UserError, which begins with `flag`, if there is none.
    """
    path = Path(name)
    if name.startswith("configs/") and not os.path.isfile(name):
        path = Path(base.__file__).parent.parent / name
    if not os.path.isfile(path):  # unlike Path.is_file, false for a name that is too long
        present = [
            str(file) for file in Path(name).parent.glob("*.py") if file.name != "__init__.py"
        ]
        raise UserError(f"{flag}={name}: no such file{keys.nearest(name, present)}")
    return path


def call_function(path: Path, function: str, *arguments: Any) -> Any:
    """Calls a config's `get_config` or a sweep's `get_sweep`.

    Raises UserError if there is none, or the file fails.
    """
    spec = importlib.util.spec_from_file_location("python_file", path.resolve())
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise UserError(f"does not define {function}()")
        return getattr(module, function)(*arguments)
    except (UserError, UnknownName) as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path.resolve())
        ]
        line = f"line {frames[-1].lineno}: " if frames else ""
        raise UserError(f"{path}: {line}{type(error).__name__}: {error}") from error


def parse_overrides(overrides: Overrides, flag: str) -> dict[str, Any]:
    """Returns the values that overrides set, by key.

    Raises UserError, which begins with `flag`, if one cannot be.
    """
    literals = {name for name, key in keys.declared_keys().items() if key.type is not str}
    return keys.coerce(
        {name: _literal(text) if name in literals else text for name, text in overrides}, flag
    )


def override(config: Config, overrides: Overrides) -> ml_collections.FrozenConfigDict:
    """Returns the configuration with the values of flags `--GROUP.KEY=VALUE`.

    Raises UserError if it is not allowed.
    """
    return with_values(config, parse_overrides(overrides, "--"))


def with_values(config: Config, values: Mapping[str, Any]) -> ml_collections.FrozenConfigDict:
    """Returns the configuration with other values for some keys.

    Raises UserError if it is not allowed.
    """
    return keys.checked(keys.flatten(config) | dict(values))


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
    version = nested.pop("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"schema_version={version}, must be {SCHEMA_VERSION}; use the commit that made the run"
        )
    return keys.checked(keys.flatten(ml_collections.ConfigDict(nested)))


def difference(old: Config, new: Config) -> dict[str, str]:
    """Returns the keys whose values differ, each with "OLD -> NEW"."""
    before, after = keys.flatten(old), keys.flatten(new)
    return {
        key: f"{keys.show(before[key])} -> {keys.show(after[key])}"
        for key in before
        if before[key] != after[key]
    }


def _literal(text: str) -> Any:
    """Returns the value of a literal of Python, also true, false and none, and all other text
    unchanged.
    """
    try:
        return ast.literal_eval(text.title() if text.lower() in ("true", "false", "none") else text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
