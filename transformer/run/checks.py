"""Checks before a run starts: that its processes agree, its devices suit it, and its data has no apparent mistakes."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from absl import logging

from configs.rules import HOST
from transformer.config.keys import flatten, keys_of
from transformer.config_types import Config
from transformer.data.corpus import sanity_checks
from transformer.data.corpus.corpus import Corpus
from transformer.data.corpus.encoding import count_losses
from transformer.data.sources.source import decoded, open_source
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.environment import describe_environment
from transformer.errors import UserError
from transformer.model.fused_attention import missing_devices


def process_facts(config: Config) -> dict[str, Any]:
    """Returns the facts that the processes of a run must agree on."""
    environment, ignored = describe_environment(), keys_of(HOST)
    settings = {f"config.{key}": value for key, value in flatten(config).items() if key not in ignored}
    # The commit does not tell uncommitted changes apart, and is unknown outside a repository.
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    code = {"the commit": environment["commit"], "the code": digest, "Python": environment["python"]}
    return settings | code | {f"the version of {name}": value for name, value in environment["packages"].items()}


def check_attention(config: Config, device: jax.Device) -> None:
    """Raises UserError if these devices cannot run the implementation of attention that `config.model` names."""
    if needed := missing_devices(config.attention_implementation, device):
        raise UserError(
            f"config.model.attention_implementation={config.attention_implementation}: needs {needed}, "
            f"and this device is {device.device_kind} ({device.platform}); use auto or plain"
        )


def warn_about_data(config: Config, vocabulary: Tokenizer, train: Corpus, valid: Corpus) -> None:
    """Logs apparent mistakes in the data. Raises UserError if most characters of the training split are unknown.

    Compares only hashes of the test split, and counts its unknown characters.
    """

    def warn(lines: Iterable[str]) -> None:
        for line in lines:
            logging.warning("%s", line)

    warn(sanity_checks.find_mistakes(config, vocabulary, train))
    for split, corpus in (("train", train), ("valid", valid)):
        name = open_source(config.data, split).name
        warn(sanity_checks.find_losses(config, vocabulary, name, corpus.report["losses"], split == "train"))
    if config.data.source == "synthetic":  # its splits have no sentence in common
        return
    for split in ("valid", "test"):
        try:
            source = open_source(config.data, split)
            texts = list(decoded(source)) if len(source) else []
        except UserError as error:
            logging.warning("%s; training does not need it, but transformer.evaluate --split=%s does", error, split)
            continue
        if texts:
            warn(sanity_checks.find_shared(train, source, texts))
        if texts and split == "test" and config.data.source != "ids":
            losses = []
            for encoder, column in zip(vocabulary.sides, zip(*texts, strict=True), strict=True):
                sentences = [text.strip() for text in column]
                losses.append(count_losses(encoder, sentences, encoder.encode(sentences)))
            warn(sanity_checks.find_losses(config, vocabulary, source.name, losses, is_train=False))
