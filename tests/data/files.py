"""Configurations and files for the tests of sources, tokenizers and corpora."""

import gzip

import numpy as np

from configs import base
from transformer.support.special_tokens import EOS


def text_config(folder, cache_dir):
    """Returns the base config with STEM.en and STEM.de in `folder` as its data."""
    config = base.get_config()
    config.data.source = "text"
    config.data.name = "test"
    config.data.path = str(folder)
    config.data.cache_dir = str(cache_dir)
    config.data.valid_split = "valid"
    config.data.workers = 1
    return config


def write(path, content):
    """Writes bytes or lines of text, compressed if the name ends with .gz."""
    if not isinstance(content, bytes):
        content = "".join(f"{line}\n" for line in content).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_pairs(folder, stem, pairs, languages=("en", "de"), ending=""):
    for side, language in enumerate(languages):
        write(folder / f"{stem}.{language}{ending}", [pair[side] for pair in pairs])


def pair_tokens(corpus, index):
    """Returns the source and target tokens of one pair, without end-of-sentence."""
    sides = [corpus.tokens(side, np.array([index])).tolist() for side in (0, 1)]
    assert all(tokens.pop() == EOS for tokens in sides)
    return tuple(sides)
