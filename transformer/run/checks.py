"""Checks before a run starts: that its processes agree, its devices suit it, and its data has no apparent mistakes."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections
from absl import logging

from configs.rules import HOST
from transformer.config.keys import flatten, keys_of
from transformer.data.corpus import sanity_checks
from transformer.data.corpus.corpus import Corpus
from transformer.data.corpus.encoding import count_losses
from transformer.data.sources.source import Source, decoded, open_source
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.environment import describe_environment
from transformer.errors import UserError
from transformer.model.fused_attention import missing_devices
from transformer.model.kernels import FLOAT32, product_dtype


def process_facts(config: ml_collections.FrozenConfigDict) -> dict[str, Any]:
    """Returns the facts that the processes of a run must agree on."""
    environment = describe_environment()
    ignored = keys_of(HOST)
    settings = {f"config.{key}": value for key, value in flatten(config).items() if key not in ignored}
    # The commit does not tell uncommitted changes apart, and is unknown outside a repository.
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    versions = {f"the version of {name}": version for name, version in environment["packages"].items()}
    code = {"the commit": environment["commit"], "the code": digest, "Python": environment["python"]}
    return settings | code | versions


def check_attention(config: ml_collections.FrozenConfigDict, device: jax.Device) -> None:
    """Raises UserError if these devices cannot run the implementation of attention that `config.model` names."""
    needed = missing_devices(config.attention_implementation, device)
    if needed:
        raise UserError(
            f"config.model.attention_implementation={config.attention_implementation}: needs {needed}, "
            f"and this device is {device.device_kind} ({device.platform}); use auto or plain"
        )


def warn_about_dtype(name: str) -> None:
    """Logs that this processor emulates the dtype that `model.dtype` names, if it does."""
    if product_dtype(name) != product_dtype("auto") == FLOAT32:
        logging.warning("config.model.dtype=%s: this processor has no instructions for it; float32 is faster", name)


def warn_about_data(
    config: ml_collections.FrozenConfigDict, vocabulary: Tokenizer, train: Corpus, valid: Corpus
) -> None:
    """Logs what looks like a mistake in the data, and whether the test split is missing.

    Of the test split it compares hashes and counts unknown characters only. Raises UserError if most characters of the
    training split are unknown.
    """
    for line in sanity_checks.find_mistakes(config, vocabulary, train):
        logging.warning("%s", line)
    for split, corpus_ in (("train", train), ("valid", valid)):
        name = open_source(config.data, split).name
        for line in sanity_checks.find_losses(config, vocabulary, name, corpus_.report["losses"], split == "train"):
            logging.warning("%s", line)
    if config.data.source != "synthetic":  # whose splits have no sentence in common
        for split in ("valid", "test"):
            try:
                source = open_source(config.data, split)
                texts = list(decoded(source)) if len(source) else []
            except UserError as error:
                logging.warning("%s; training does not need it, but transformer.evaluate --split=%s does", error, split)
                continue
            if texts:
                warn_about_held_out(config, vocabulary, train, source, texts, split)


def warn_about_held_out(
    config: ml_collections.FrozenConfigDict,
    vocabulary: Tokenizer,
    train: Corpus,
    source: Source,
    texts: Sequence[tuple[str, str]],
    split: str,
) -> None:
    """Logs which pairs of a held-out split are training pairs, and for the test split what its vocabulary lacks."""
    for line in sanity_checks.find_shared(train, source, texts):
        logging.warning("%s", line)
    if split == "test" and config.data.source != "ids":
        losses = []
        for side, encoder in enumerate(vocabulary.sides):
            sentences = [pair[side].strip() for pair in texts]
            losses.append(count_losses(encoder, sentences, encoder.encode(sentences)))
        for line in sanity_checks.find_losses(config, vocabulary, source.name, losses, is_train=False):
            logging.warning("%s", line)
