"""The type of a configuration, or of one group of its keys, and the meaning of keys that several
parts read.
"""

import math
import re
from typing import Any

import ml_collections

Config = ml_collections.ConfigDict | ml_collections.FrozenConfigDict


def with_changes(config: Config, **changes: Any) -> ml_collections.ConfigDict:
    """Returns a copy with other values, unchecked, where a dict changes keys of a group."""
    # a ConfigDict of a ConfigDict shares its groups
    changed = ml_collections.ConfigDict(config.to_dict())
    changed.update(changes)
    return changed


def head_widths(config: Config) -> tuple[int, int]:
    """Returns d_k and d_v, the widths of a head's queries and keys, and of its values.

    `config` is `config.model`.
    """
    equal_part = config.d_model // config.num_heads
    return config.d_k or equal_part, config.d_v or equal_part


def output_limit(tokens: int, config: Config) -> int:
    """Returns the most tokens before EOS of an output, for a source with so many.

    `config` is `config.decoding`.
    """
    # 1.1 x 10 is above 11 in floating point.
    return math.ceil(round(config.max_length_factor * tokens, 6)) + config.max_extra_length


def names_in(text: str) -> list[str]:
    """Returns the names that a text lists with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def guided_heads(config: Config) -> list[tuple[int, int]]:
    """Returns (layer, head), from 0, of each head in `guided_heads`; none unless all are
    LAYER.HEAD, from 1.

    `config` is `config.training`.
    """
    heads = [
        re.fullmatch(r"([1-9]\d{0,8})\.([1-9]\d{0,8})", name)
        for name in names_in(config.guided_heads)
    ]
    return [] if None in heads else [(int(head[1]) - 1, int(head[2]) - 1) for head in heads]
