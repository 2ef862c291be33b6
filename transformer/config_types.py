"""The type of a configuration, or of one group of its keys, and the widths that keys leave to their defaults."""

import ml_collections

Config = ml_collections.ConfigDict | ml_collections.FrozenConfigDict


def head_widths(config: Config) -> tuple[int, int]:
    """Returns d_k and d_v, the widths of a head's queries and keys, and of its values. `config` is `config.model`."""
    equal_part = config.d_model // config.num_heads
    return config.d_k or equal_part, config.d_v or equal_part
