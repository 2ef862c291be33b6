"""Section 3 of the paper. Every argument `model_config` is the group `config.model`."""
