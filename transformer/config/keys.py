"""Names and declarations of configuration keys.

A key is written with its group, `model.d_model`; a flat configuration is a dictionary from such keys to values.
"""

import difflib
from collections.abc import Iterable
from typing import Any

import ml_collections

from configs import base
from configs.rules import Key, Scope
from transformer.config_types import Config
from transformer.errors import UserError

TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text", tuple: "a tuple"}


def declared_keys() -> dict[str, Key]:
    """Returns the declaration of every key, from `configs/base.py`."""
    return flatten(base.get_keys())


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


def unknown_key(given: str, key: str) -> UserError:
    """Returns the error for a key that `configs/base.py` does not declare."""
    advice = nearest(key, declared_keys(), count=3) or "; configs/base.py explains every key"
    return UserError(f"{given}: there is no key {key}{advice}")


def whole_number(text: str) -> int:
    """Returns the integer that 10000 or 1e4 denotes. Raises ValueError for other numbers and other text."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise
        return int(value)


def type_name(key: Key) -> str:
    return TYPE_NAMES[key.type] + (" or None" if key.is_optional else "")


def nearest(name: str, candidates: Iterable[str], count: int = 1) -> str:
    """Returns "; did you mean ...?" with the candidates most like `name`, or "" if none is like it."""
    candidates = list(candidates)
    abbreviated = sorted((candidate for candidate in candidates if _abbreviates(name, candidate)), key=len)
    close = list(dict.fromkeys(abbreviated + difflib.get_close_matches(name, candidates, n=count)))[:count]
    suggestion = " or ".join(filter(None, (", ".join(close[:-1]), *close[-1:])))
    return f"; did you mean {suggestion}?" if close else ""


def _abbreviates(name: str, word: str) -> bool:
    """Tells whether `name` has at least three of the letters of `word`, in order, from the first one on."""
    letters = iter(word)
    return len(name) > 2 and word.startswith(name[0]) and all(letter in letters for letter in name)


def show(value: Any) -> str:
    """Returns the value for a message, as one types it if that is printable text."""
    return value if isinstance(value, str) and value and value.isprintable() else repr(value)
