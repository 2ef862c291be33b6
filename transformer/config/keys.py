"""Names, declarations and checks of configuration keys.

The name of a key begins with its group, such as `model.d_model`. A flat configuration is a
dictionary from such names to values.
"""

import dataclasses
import difflib
import inspect
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

# Larger integers may overflow as floats.
LARGEST = 1 << 1000
# Keys of older runs. Only the initial parameters depended on them.
REMOVED_KEYS = ("model.source_vectors", "model.target_vectors")
TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a tuple like ('A',)",
}


def declared_keys() -> dict[str, Key]:
    """Returns the declaration of every key in `configs/base.py`.

    The rule `LISTED` is replaced by the names in the key's table.
    """
    # Rules are resolved at the time of a check, since the tables import JAX.
    keys = flatten(base.get_keys())
    for name, key in keys.items():
        if key.rule is LISTED:
            keys[name] = dataclasses.replace(key, rule=_listed(name))
    return keys


def _listed(name: str) -> NameRule:
    return NameRule(lambda: tuple(tables()[name]))


def keys_of(*scopes: Scope) -> list[str]:
    """Returns the names of the keys with these scopes."""
    return [name for name, key in declared_keys().items() if key.scope in scopes]


def flatten(config: Config) -> dict[str, Any]:
    """Returns the flat form of a configuration."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            flat |= {f"{key}.{name}": inner for name, inner in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def freeze(flat: dict[str, Any]) -> ml_collections.FrozenConfigDict:
    """Returns the configuration with these values, the inverse of `flatten`."""
    nested = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        values = nested.setdefault(group, {}) if group else nested
        values[name] = value
    return ml_collections.FrozenConfigDict(nested)


def nearest(name: str, candidates: Iterable[str], count: int = 1) -> str:
    """Returns "; did you mean ...?" with the most similar candidates, or "" if none is similar.

    A key with the name of a flag is the most similar: `--config.training.note` for `--note`.
    """
    candidates = list(candidates)
    same = [candidate for candidate in candidates if candidate.endswith(f".{name.lstrip('-')}")]
    close = same[:count] or difflib.get_close_matches(name, candidates, n=count)
    return f"; did you mean {', '.join(close)}?" if close else ""


def format_value(value: Any) -> str:
    """Returns the value for a message, as a user would type it if it is printable text."""
    return value if isinstance(value, str) and value and value.isprintable() else repr(value)


def recorded_config(flat: dict[str, Any]) -> ml_collections.FrozenConfigDict:
    """Returns the configuration of a run, which may be older than the removal of some keys.

    Raises UserError if it is not allowed.
    """
    return validated_config({key: flat[key] for key in flat if key not in REMOVED_KEYS})


def validated_config(flat: dict[str, Any]) -> ml_collections.FrozenConfigDict:
    """Returns the configuration with these values, and defaults for the other keys.

    Raises UserError if it is not allowed.
    """
    keys = declared_keys()
    flat = coerce_types(flat)
    # Each value by the rule of its key, then each combination of values.
    for name, value in flat.items():
        rule = keys[name].rule
        if value is not None and not rule.accepts(value):
            advice = nearest(str(value), rule.names)
            raise UserError(
                f"config.{name}={format_value(value)}: must be {rule.description}{advice}"
            )

    config = freeze(flat)
    for advice, is_impossible in COMBINATIONS.items():
        values = {}
        # The recorders note which values a condition reads, for its error message.
        groups = [
            _Recorder(config[group], group, values)
            for group in inspect.signature(is_impossible).parameters
        ]
        if is_impossible(*groups):
            settings = [f"config.{name}={format_value(value)}" for name, value in values.items()]
            raise UserError(f"{', '.join(settings)}: {advice}")
    return config


class _Recorder:
    """A group of a configuration that records each value which is read from it."""

    def __init__(self, group_config: Config, group: str, values: dict[str, Any]) -> None:
        self._group_config = group_config
        self._group = group
        self._values = values

    def __getattr__(self, name: str) -> Any:
        value = self._group_config[name]
        self._values[f"{self._group}.{name}"] = value
        return value


def check_for_training(config: Config) -> None:
    """Raises UserError for a key that only decoding with a trained model may set."""
    for key, required in {"shortlist": 0, "dtype": "auto"}.items():
        value = config.decoding[key]
        if value != required:
            raise UserError(
                f"config.decoding.{key}={value}: must be {required} in training, whose validation "
                f"does not approximate; give --decoding.{key}={value} to transformer.evaluate or "
                "transformer.translate"
            )


def coerce_types(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all keys in their types, with defaults for missing ones.

    Raises UserError as `coerce`.
    """
    return {name: key.default for name, key in declared_keys().items()} | coerce(flat, "config.")


def coerce(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Returns the values in the types of their keys: 1 is a float too, 1e4 an integer.

    Raises UserError, which begins with `prefix` and the key, for an unknown key or a value of
    another type.
    """
    keys = declared_keys()
    coerced = {}
    for name, value in values.items():
        if name not in keys:
            advice = nearest(name, keys, count=3) or "; configs/base.py explains every key"
            raise UserError(f"{prefix}{name}={format_value(value)}: there is no key {name}{advice}")
        key = keys[name]
        # NumPy scalars become Python numbers.
        if isinstance(value, numbers.Number) and hasattr(value, "item"):
            value = value.item()
        # Conversions that lose nothing. bool is not an int here, because types must be equal.
        if key.type is float and type(value) is int and abs(value) < LARGEST:
            value = float(value)
        elif key.type is int and type(value) is float and value.is_integer():
            value = int(value)
        elif key.type is tuple and type(value) is list:
            value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
        elif type(value) is not key.type and not (key.is_optional and value is None):
            required = TYPE_NAMES[key.type] + (" or None" if key.is_optional else "")
            raise UserError(f"{prefix}{name}={format_value(value)}: must be {required}")
        coerced[name] = value
    return coerced
