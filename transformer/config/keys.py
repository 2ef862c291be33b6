"""The keys of a configuration: their types, which `configs/base.py` fixes, and how they are named to the user.

A key is written with its group, `model.d_model`; a table of all of them is a flat dictionary from such keys to values.
"""

import difflib
from collections.abc import Iterable
from typing import Any

import ml_collections

from configs import base
from transformer.errors import UserError

LARGEST = 1 << 1000  # integers beyond it may be no floats
# Keys that were added since configurations were first saved. Those saved before go by the values in base.py.
ADDED = (
    "checkpoint.keep_every",
    "data.wait_seconds",
    "decoding.forbid_unk",
    "training.max_rollbacks",
    "training.max_skipped",
    "training.r_drop",
    "training.stall_seconds",
)
SCALARS = (str, int, float, bool, type(None))
TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text", tuple: "a tuple"}


def flatten(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """All keys, written with their group, and their values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            flat |= {f"{key}.{name}": inner for name, inner in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def freeze(flat: dict[str, Any]) -> ml_collections.FrozenConfigDict:
    """The inverse of `flatten`: the only place where the configuration of a run is made."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[name] = value
    return ml_collections.FrozenConfigDict(nested)


def with_added(flat: dict[str, Any]) -> dict[str, Any]:
    """A saved configuration with the keys that are younger than it."""
    values = flatten(base.get_config())
    return {key: values[key] for key in ADDED} | flat


def expected_types() -> dict[str, tuple[type, bool]]:
    """For each key its type, and whether it may be None."""
    config, expected = base.get_config(), {}
    for key, value in flatten(config).items():
        group, _, name = key.rpartition(".")
        expected[key] = ((config[group] if group else config).get_type(name), value is None)
    return expected


def typed(flat: dict[str, Any]) -> dict[str, Any]:
    """The same values, with whole numbers made floats and lists tuples where base.py has those.

    Raises:
      UserError: a key is unknown or missing, or its value is of another type.
    """
    expected = expected_types()
    for key, value in flat.items():
        if key not in expected:
            raise unknown_key(f"config.{key}={show(value)}", key)
    if missing := [key for key in expected if key not in flat]:
        raise UserError(f"config.{missing[0]}: missing; start from base.get_config()")
    return {key: _typed_value(key, value, *expected[key]) for key, value in flat.items()}


def _typed_value(key: str, value: Any, kind: type, optional: bool) -> Any:
    if kind is float and type(value) is int and abs(value) < LARGEST:
        return float(value)
    if kind is tuple and type(value) in (list, tuple) and _is_plain(value):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    if type(value) is not kind and not (optional and value is None):
        raise UserError(f"config.{key}={show(value)}: must be {describe(kind, optional)}")
    return value


def _is_plain(value: Any) -> bool:
    """Whether it is built of tuples, lists and scalars alone: ml_collections freezes no mapping inside of a tuple."""
    return all(map(_is_plain, value)) if isinstance(value, list | tuple) else isinstance(value, SCALARS)


def unknown_key(given: str, key: str) -> UserError:
    """The error for a key that base.py does not have. It lists what the key's group has, if there is such a group."""
    group, _, _ = key.rpartition(".")
    expected = expected_types()
    beside = [name.rpartition(".")[2] for name in expected if group and name.startswith(f"{group}.")]
    allowed = f"; config.{group} has {', '.join(beside)}" if beside else ""
    return UserError(f"{given}: there is no key {key}{allowed}{nearest(key, expected)}")


def describe(kind: type, optional: bool) -> str:
    return TYPE_NAMES[kind] + (" or None" if optional else "")


def nearest(name: str, candidates: Iterable[str]) -> str:
    """The end of an error message: what `name` was probably meant to be, or nothing."""
    close = difflib.get_close_matches(name, list(candidates), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def show(value: Any) -> str:
    """The value in a message, as it would be typed where that is on one line."""
    return value if isinstance(value, str) and value and value.isprintable() else repr(value)
