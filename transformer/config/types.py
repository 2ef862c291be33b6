"""The type of a configuration, and the meaning of keys that several parts read."""

import math
import re
from typing import Any, TypeAlias

import ml_collections

# A configuration, or one of its groups.
Config: TypeAlias = ml_collections.ConfigDict | ml_collections.FrozenConfigDict


def with_changes(config: Config, **changes: Any) -> ml_collections.ConfigDict:
    """Returns a copy with other values, unchecked. A dict changes some keys of a group."""
    # A ConfigDict that is made from a ConfigDict would share its groups.
    changed = ml_collections.ConfigDict(config.to_dict())
    changed.update(changes)
    return changed


def head_widths(model_config: Config) -> tuple[int, int]:
    """Returns d_k and d_v, the widths of a head's queries and keys, and of its values."""
    # Section 3.2.2: d_k = d_v = d_model / h, unless set.
    equal_part = model_config.d_model // model_config.num_heads
    return model_config.d_k or equal_part, model_config.d_v or equal_part


def output_limit(tokens: int, decoding_config: Config) -> int:
    """Returns the maximum output length, without EOS, for a source of `tokens` tokens."""
    # Rounded, since 1.1 x 10 is above 11 in floating point.
    scaled = round(decoding_config.max_length_factor * tokens, 6)
    return math.ceil(scaled) + decoding_config.max_extra_length


def names_in(text: str) -> list[str]:
    """Returns the names that a text lists with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def guided_heads(training_config: Config) -> list[tuple[int, int]]:
    """Returns (layer, head), counted from 0, of each head in `guided_heads`.

    The list is empty unless all are LAYER.HEAD, counted from 1.
    """
    heads = []
    for name in names_in(training_config.guided_heads):
        match = re.fullmatch(r"([1-9]\d{0,8})\.([1-9]\d{0,8})", name)
        if match is None:
            return []
        heads.append((int(match[1]) - 1, int(match[2]) - 1))
    return heads
