"""The type of a configuration, or of one group of its keys."""

import ml_collections

Config = ml_collections.ConfigDict | ml_collections.FrozenConfigDict
