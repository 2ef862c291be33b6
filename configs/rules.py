"""Declarations of configuration keys for `configs/base.py`: default, type, and allowed values."""

import enum
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_collections
from ml_collections.config_dict import placeholder

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Rule:
    """A condition on a value of the right type.

    An error message says "must be" and the description.
    """

    description: str
    accepts: Callable[[Any], bool]
    names = ()


@dataclass(frozen=True)
class NameRule:
    """A rule that accepts the names that `list_names` returns at the time of the check."""

    list_names: Callable[[], tuple[str, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        return self.list_names()

    @property
    def description(self) -> str:
        return f"one of {', '.join(self.names)}"

    def accepts(self, value: str) -> bool:
        return value in self.names


class UnknownName(ValueError):
    """Raised for an argument in `configs/X.py:ARGUMENT` that is not one of its names."""


class Scope(enum.Enum):
    """The reach of a key. A run that resumes may change all keys except keys of RESULT."""

    RESULT = "what is computed"
    RECORD = "what is validated and saved, and when a run gives up or ends early"
    LOG = "what is only logged; no checkpoint or score depends on it"
    PATH = "where the data are, which fingerprints identify"
    MESH = "the devices and what is particular to them; results agree up to rounding"
    HOST = "how one process works; processes of a run may differ"


RESULT, RECORD, LOG, PATH, MESH, HOST = Scope


@dataclass(frozen=True)
class Key:
    """A configuration key.

    `value_type` is needed only where the default is None, which is then allowed too.
    """

    default: Any
    rule: Rule | NameRule
    scope: Scope = RESULT
    value_type: type | None = None

    @property
    def type(self) -> type:
        return self.value_type or type(self.default)

    @property
    def is_optional(self) -> bool:
        return self.default is None


def optional(value_type: type, rule: Rule | NameRule) -> Key:
    """Returns a key that is None by default."""
    return Key(None, rule, value_type=value_type)


def defaults(keys: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns the default of every key.

    Optional keys become placeholders, so that a config can set them.
    """
    # Types are checked later: 1e4 is allowed for an integer.
    config = ml_collections.ConfigDict(type_safe=False)
    # Groups are nested.
    for name, key in keys.items():
        if isinstance(key, ml_collections.ConfigDict):
            config[name] = defaults(key)
        else:
            config[name] = placeholder(key.type) if key.is_optional else key.default
    return config


def at_least(least: int | float) -> Rule:
    """Returns a rule with a lower bound.

    Values must also fit into 32 bits, since JAX arrays hold steps and lengths.
    """
    return Rule(f"at least {least} and below 2^31", lambda value: least <= value < 2**31)


def above(bound: int | float) -> Rule:
    return Rule(f"above {bound}", lambda value: bound < value < math.inf)


def between(least: int | float, most: int | float) -> Rule:
    return Rule(f"from {least} to {most}", lambda value: least <= value <= most)


def either(value: int | float, rule: Rule) -> Rule:
    """Returns a rule that accepts one special value, and the values of another rule."""
    return Rule(f"{value} or {rule.description}", lambda x: x == value or rule.accepts(x))


def one_of(*names: str) -> NameRule:
    return NameRule(lambda: names)


def choose(kind: str, name: str, table: Mapping[str, Entry]) -> Entry:
    """Returns the entry of the table that the argument of a config names.

    Raises UnknownName if there is none.
    """
    if name not in table:
        raise UnknownName(
            f"{kind}={name}: must be one of {', '.join(table)}; name it after a colon"
        )
    return table[name]


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and "\n" not in value and "\0" not in value


def _is_tag(tag: str) -> bool:
    is_text = tag.endswith(":") and " ".join(tag.split()) == tag
    if tag and tag.split() != [tag] and not is_text:
        return False
    rest = tag.replace("{source_language}", "").replace("{target_language}", "")
    return "{" not in rest and "}" not in rest


def _is_triples(value: tuple) -> bool:
    return all(
        isinstance(item, tuple) and len(item) == 3 and all(map(_is_line, item)) for item in value
    )


def _is_changes(text: str) -> bool:
    # Training begins with `training.accumulation` batches at step 1.
    last_step = 1
    for change in text.split(",") if text else ():
        match = re.fullmatch("([0-9]{1,9}):([0-9]{1,9})", change)
        if match is None or int(match[1]) <= last_step or int(match[2]) < 1:
            return False
        last_step = int(match[1])
    return True


TEXT = Rule("text of one line", _is_line)
NONEMPTY_TEXT = Rule(
    "text of one line, not empty", lambda value: value.strip() != "" and _is_line(value)
)
TEXTS = Rule("a tuple of texts", lambda value: all(map(_is_line, value)))
WORDS = Rule(
    "a tuple of words",
    lambda value: all(isinstance(item, str) and item.split() == [item] for item in value),
)
TAG = Rule(
    "one word, or empty, in which braces are those of {source_language} or {target_language}; "
    "or words that end with a colon",
    _is_tag,
)
CHANGES = Rule(
    "empty, or STEP:BATCHES,STEP:BATCHES,... of ascending steps from 2 on and at least 1 batch, "
    "such as 2000:2,4000:4",
    _is_changes,
)
LANGUAGE = Rule("a language code, or empty", lambda value: bool(re.fullmatch(r"[^\s/\0]*", value)))
SWITCH = Rule("true or false", lambda value: True)
PROBABILITY = Rule("at least 0 and below 1", lambda value: 0 <= value < 1)
FRACTION = Rule("above 0 and at most 1", lambda value: 0 < value <= 1)
# A marker, which `transformer.config.keys.declared_keys` replaces by the names in the key's table.
LISTED = NameRule(lambda: ())
SEED = between(0, 2**32 - 1)
DOWNLOADS = Rule("a tuple of (file name, URL, sha256) triples", _is_triples)
