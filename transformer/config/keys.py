"""Names, declarations and checks of configuration keys.

A key is written with its group, `model.d_model`; a flat configuration is a dictionary from such
keys to values.
"""

import dataclasses
import difflib
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from configs import base
from configs.rules import LISTED, Key, NameRule, Scope
from transformer.config.combinations import COMBINATIONS
from transformer.config.tables import tables
from transformer.config.types import Config
from transformer.support.errors import UserError

LARGEST = 1 << 1000  # larger integers may overflow as floats
TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a tuple like ('A',)",
}


def declared_keys() -> dict[str, Key]:
    """Returns the declaration of every key, from `configs/base.py`.

    `LISTED` becomes the rule of the key's table.
    """
    keys = flatten(base.get_keys())
    for name, key in keys.items():
        if key.rule is LISTED:
            keys[name] = dataclasses.replace(
                key, rule=NameRule(lambda name=name: tuple(tables()[name]))
            )
    return keys


def keys_of(*scopes: Scope) -> list[str]:
    """Returns the names of the keys with these scopes."""
    return [name for name, key in declared_keys().items() if key.scope in scopes]


def flatten(config: Config) -> dict[str, Any]:
    """Returns the flat form of a configuration."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            flat |= {f"{key}.{name}": inner for name, inner in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def freeze(flat: dict[str, Any]) -> ml_collections.FrozenConfigDict:
    """Returns the configuration with these values, the inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[name] = value
    return ml_collections.FrozenConfigDict(nested)


def nearest(name: str, candidates: Iterable[str], count: int = 1) -> str:
    """Returns "; did you mean ...?" with the candidates most like `name`, or "" if none is like it."""
    close = difflib.get_close_matches(name, candidates, n=count)
    return f"; did you mean {', '.join(close)}?" if close else ""


def show(value: Any) -> str:
    """Returns the value for a message, as one types it if that is printable text."""
    return value if isinstance(value, str) and value and value.isprintable() else repr(value)


def checked(flat: dict[str, Any]) -> ml_collections.FrozenConfigDict:
    """Returns the configuration with these values and the defaults of others.

    Raises UserError if it is not allowed.
    """
    flat, keys = coerce_types(flat), declared_keys()
    for name, value in flat.items():
        rule = keys[name].rule
        if value is not None and not rule.accepts(value):
            advice = nearest(str(value), rule.names)
            raise UserError(f"config.{name}={show(value)}: must be {rule.description}{advice}")
    config = freeze(flat)
    for advice, is_impossible in COMBINATIONS.items():
        values: dict[str, Any] = {}
        if is_impossible(_Recorder(config, values)):
            raise UserError(
                f"{', '.join(f'config.{name}={show(value)}' for name, value in values.items())}: {advice}"
            )
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


def check_for_training(config: Config) -> None:
    """Raises UserError for a key that only decoding with a trained model may set."""
    for key, exact in {"shortlist": 0, "dtype": "auto"}.items():
        if (value := config.decoding[key]) != exact:
            raise UserError(
                f"config.decoding.{key}={value}: must be {exact} in training, whose validation does not approximate; "
                f"give --decoding.{key}={value} to transformer.evaluate or transformer.translate"
            )


def coerce_types(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all keys, with the defaults of others, in their types.

    Raises UserError as `coerce`.
    """
    return {name: key.default for name, key in declared_keys().items()} | coerce(flat, "config.")


def coerce(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Returns the values in the types of their keys: 1 is a float too, 1e4 an integer.

    Raises UserError, which begins with `prefix` and the key, for an unknown key or a value of
    another type.
    """
    keys, coerced = declared_keys(), {}
    for name, value in values.items():
        if name not in keys:
            advice = nearest(name, keys, count=3) or "; configs/base.py explains every key"
            raise UserError(f"{prefix}{name}={show(value)}: there is no key {name}{advice}")
        key = keys[name]
        if isinstance(value, numbers.Number) and hasattr(value, "item"):  # of NumPy
            value = value.item()
        if key.type is float and type(value) is int and abs(value) < LARGEST:
            value = float(value)
        elif key.type is int and type(value) is float and value.is_integer():
            value = int(value)
        elif key.type is tuple and type(value) is list:
            value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
        elif type(value) is not key.type and not (key.is_optional and value is None):
            required = TYPE_NAMES[key.type] + (" or None" if key.is_optional else "")
            raise UserError(f"{prefix}{name}={show(value)}: must be {required}")
        coerced[name] = value
    return coerced
