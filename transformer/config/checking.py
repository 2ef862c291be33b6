"""Checks of a configuration: known keys, types, the rules of `configs/base.py`, and combinations of values."""

from typing import Any

import ml_collections
from absl import logging

from configs.rules import Key
from transformer.config.combinations import COMBINATIONS, Condition
from transformer.config.keys import declared_keys, freeze, nearest, show, type_name, unknown_key
from transformer.config_types import Config
from transformer.errors import UserError

LARGEST = 1 << 1000  # larger integers may overflow as floats


def checked(flat: dict[str, Any]) -> ml_collections.FrozenConfigDict:
    """Returns the configuration with these values, and the defaults of keys that are missing.

    Raises UserError if a key is unknown, or its value or a combination of values is not allowed.
    """
    flat, keys = coerce_types(flat), declared_keys()
    for name, value in flat.items():
        rule = keys[name].rule
        if value is not None and not rule.accepts(value):
            advice = nearest(str(value), rule.names)
            raise UserError(f"config.{name}={show(value)}: must be {rule.description}{advice}")
    config = freeze(flat)
    for advice, is_impossible in COMBINATIONS.items():
        if is_impossible(config):
            values = _values_read(is_impossible, config)
            raise UserError(f"{', '.join(f'config.{name}={show(value)}' for name, value in values.items())}: {advice}")
    return config


class _Recorder:
    """A configuration, or a group of it, that records each value read from it under its key."""

    def __init__(self, config: Config, values: dict[str, Any], prefix: str = "") -> None:
        self._config, self._values, self._prefix = config, values, prefix

    def __getattr__(self, name: str) -> Any:
        value, key = self._config[name], f"{self._prefix}{name}"
        if isinstance(value, ml_collections.ConfigDict):
            return _Recorder(value, self._values, f"{key}.")
        self._values[key] = value
        return value


def _values_read(condition: Condition, config: Config) -> dict[str, Any]:
    """Returns the keys that a condition reads, with their values: those that an error message names."""
    values: dict[str, Any] = {}
    condition(_Recorder(config, values))
    return values


def check_for_training(config: Config) -> None:
    """Raises UserError for a key that only decoding with a trained model may set."""
    if size := config.decoding.shortlist:
        raise UserError(
            f"config.decoding.shortlist={size}: must be 0 in training, whose validation searches the whole vocabulary; "
            f"give --decoding.shortlist={size} to transformer.evaluate or transformer.translate"
        )


def coerce_types(flat: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of all keys, of the types in `configs/base.py`: 1 is also a float, 1e4 an integer, [] a tuple.

    Raises UserError if a key is unknown, or its value has another type.
    """
    keys = declared_keys()
    for name, value in flat.items():
        if name not in keys:
            raise unknown_key(f"config.{name}={show(value)}", name)
    return {name: _coerce(name, flat.get(name, key.default), key) for name, key in keys.items()}


def _coerce(name: str, value: Any, key: Key) -> Any:
    if key.type is float and type(value) is int and abs(value) < LARGEST:
        return float(value)
    if key.type is int and type(value) is float and value.is_integer():
        return int(value)
    if key.type is tuple and type(value) is list:
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    if type(value) is not key.type and not (key.is_optional and value is None):
        raise UserError(f"config.{name}={show(value)}: must be {type_name(key)}")
    return value


def fit_to_steps(flat: dict[str, Any]) -> dict[str, Any]:
    """Returns the values with warm-up and validation interval reduced to the length of the run.

    So `--config.training.steps=20` makes a short run of any config.
    """
    steps = flat["training.steps"]
    longer = [name for name in ("optimizer.warmup_steps", "training.eval_every") if flat[name] > steps > 0]
    for name in longer:
        logging.warning("%s=%d is reduced to training.steps=%d.", name, flat[name], steps)
    return flat | dict.fromkeys(longer, steps)
