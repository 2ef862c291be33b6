"""Folders of Hugging Face's models: the files that all kinds of models have."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import logging

from scripts.interop import untrusted
from scripts.interop.hugging_face_names import (
    CONFIG,
    GENERATION,
    NOT_TAKEN,
    STOPPING,
    TOKENIZER,
    WEIGHTS,
)
from scripts.interop.portable import Arrays, PortableModel, Settings
from scripts.interop.vocabularies import Side
from transformer.config.keys import format_value, validated_config
from transformer.decoding.control.control import banned_tokens
from transformer.decoding.ensemble import forbidden_tokens
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, SPECIAL

INDEX = "model.safetensors.index.json"  # of weights in several files
LONGEST = 512  # tokens of a source, unless tokenizer_config.json has a limit
# Copies of the weights in float32 that exist at the same time during an import.
COPIES = 4
EARLY_STOPPING = {ours: foreign for foreign, ours in STOPPING.items()}


class Folder(NamedTuple):
    """A folder, and the settings in its files. The last two files are optional."""

    path: Path
    config: Settings  # config.json
    search: Settings  # generation_config.json
    texts: Settings  # tokenizer_config.json

    @property
    def search_settings(self) -> Settings:
        """The settings of the search, which older folders have in config.json."""
        return self.search or self.config

    @property
    def search_file(self) -> Path:
        return self.path / (GENERATION if self.search else CONFIG)

    @property
    def max_source_length(self) -> int:
        return self.texts.get("model_max_length", LONGEST)


def read_folder(path: Path) -> Folder:
    """Reads the settings."""
    search, texts = (
        _read_values(path / name) if (path / name).exists() else {}
        for name in (GENERATION, TOKENIZER)
    )
    return Folder(path, _read_values(path / CONFIG), search, texts)


def _read_values(path: Path) -> Settings:
    """Returns the settings in a file. As in Transformers, null means absent."""
    return {name: value for name, value in untrusted.read_json(path).items() if value is not None}


def read_search(search: Settings, path: Path, target: Side) -> Settings:
    """Returns the search as configuration. `path` is the file of the settings, for a warning."""
    forced = search.get("forced_bos_token_id")
    if forced is not None:
        raise UserError(
            f"forced_bos_token_id={forced}: a token that begins each translation cannot be imported"
        )
    config = {
        "decoding.stopping": STOPPING[search.get("early_stopping", False)],
        "decoding.beam_size": search.get("num_beams", 1),
        "decoding.length_penalty": search.get("length_penalty", 1.0),
        "decoding.length_penalty_form": "power",
        # The minimum in Transformers includes the start.
        "decoding.min_length": max(0, search.get("min_length", 0) - 1),
        "decoding.no_repeat_ngram": search.get("no_repeat_ngram_size", 0),
    }
    validated_config(config)

    # Single tokens can be banned here, but not sequences.
    words = search.get("bad_words_ids", [])
    ids = itertools.chain(*(word for word in words if len(word) == 1))
    token_of = dict(enumerate(target.tokens))
    tokens = {token_of[id_] for id_ in [*ids, *search.get("suppress_tokens", [])]}
    if EOS in tokens:
        raise UserError("bans </s>, so that no translation could end")
    # The search never generates the other special tokens.
    config["decoding.banned_pieces"] = tuple(
        target.vocabulary.pieces[token] for token in sorted(tokens) if token >= SPECIAL
    )

    # Settings without a counterpart are not errors, because they may not matter.
    unused = {name: search[name] for name, off in NOT_TAKEN.items() if search.get(name, off) != off}
    if any(len(word) > 1 for word in words):
        unused["bad_words_ids"] = words
    if unused:
        described = ", ".join(f"{name}={format_value(value):.60}" for name, value in unused.items())
        logging.warning("%s: the search here does not take %s.", path, described)
    return config


def read_weights(folder: Path) -> Arrays:
    """Reads the weights, which may be in several files that an index lists.

    Raises UserError before it reads them if they do not fit into memory.
    """
    names = [WEIGHTS]
    if not (folder / WEIGHTS).exists():
        if (folder / INDEX).exists():
            with untrusted.reading(folder / INDEX):
                names = set(untrusted.read_json(folder / INDEX)["weight_map"].values())
                # An index must not lead to files elsewhere.
                if any(Path(name).name != name for name in names):
                    raise UserError("must have names of files in its folder")
        else:
            untrusted.refuse_pickles(folder)
    paths = [folder / name for name in sorted(names)]
    _check_memory(folder, sum(map(untrusted.count_elements, paths)))
    arrays = {}
    for path in paths:
        arrays |= untrusted.read_safetensors(path)
    return arrays


def _check_memory(folder: Path, num_parameters: int) -> None:
    needed = COPIES * 4 * num_parameters
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise UserError(
            f"{folder}: has {num_parameters:,} parameters, whose import takes {needed / 1e9:.1f} "
            f"GB of memory; this machine has {memory / 1e9:.1f} GB"
        )


def write_weights(arrays: Arrays, folder: Path, quantization: str | None) -> str:
    """Writes the weights, and returns the name of their dtype."""
    from safetensors.numpy import save_file

    dtype = np.dtype(quantization or "float32")
    with np.errstate(over="ignore"):  # an error below
        arrays = {name: np.ascontiguousarray(array, dtype) for name, array in arrays.items()}
    untrusted.check_finite(folder / WEIGHTS, arrays)
    # Transformers requires the metadata.
    save_file(arrays, folder / WEIGHTS, metadata={"format": "pt"})
    return dtype.name


def search_settings(model: PortableModel, max_length: int, rows: Sequence[int]) -> Settings:
    """Returns the content of generation_config.json, without the special tokens.

    `rows` has the token of each row of the target's table.
    """
    settings = model.settings
    min_length = settings["decoding.min_length"]
    banned = banned_tokens(settings["decoding.banned_pieces"], model.tokenizer.target)
    never = [*forbidden_tokens(settings["decoding.forbid_unk"]), *banned]
    return {
        "num_beams": settings["decoding.beam_size"],
        "length_penalty": settings["decoding.length_penalty"],
        "early_stopping": EARLY_STOPPING[settings["decoding.stopping"]],
        "max_length": max_length,
        # The minimum in Transformers includes the start.
        "min_length": min_length and min_length + 1,
        "no_repeat_ngram_size": settings["decoding.no_repeat_ngram"],
        "bad_words_ids": [[rows.index(token)] for token in never if token in rows],
    }
