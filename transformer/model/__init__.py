"""Section 3 of the paper. Every argument `config` is the group `config.model`."""
