"""Portable models with random parameters, for tests."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from configs import base
from scripts.interop import certificate
from scripts.interop.formats import Format
from scripts.interop.portable import PortableModel
from scripts.interop.runtimes import ask
from transformer.checkpoints.restore import named_leaves
from transformer.config.loading import with_values
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import SentencePieceVocabulary
from transformer.support.special_tokens import BOS, EOS, PAD, UNK
from transformer.training.state import abstract_init

TEXTS = (
    "a small dog runs",
    "the dog sees a red ball",
    "two men sell a small red lamp",
    "the lamp runs",
    "red men run",
)
TINY = {
    "model.num_layers": 1,
    "model.d_model": 8,
    "model.d_ff": 16,
    "model.num_heads": 2,
    "model.dtype": "float32",
    "data.source_language": "de",
    "data.target_language": "en",
    "decoding.beam_size": 2,
    "decoding.max_extra_length": 4,
    "decoding.max_source_length": 64,
    "decoding.batch_tokens": 256,
}


def make_tokenizer(
    *sizes: int, texts: Sequence[str] = TEXTS, user_symbols: Sequence[str] = ()
) -> Tokenizer:
    """Returns a SentencePiece tokenizer of these vocabulary sizes, one for both sides or one for
    each.
    """
    vocabularies = []
    for size in sizes:
        model = io.BytesIO()
        ids = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}
        options = {"model_type": "unigram", "vocab_size": size, "minloglevel": 2, **ids}
        options["user_defined_symbols"] = list(user_symbols)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, **options
        )
        vocabularies.append(SentencePieceVocabulary(model.getvalue()))
    return Tokenizer(vocabularies[0], vocabularies[-1])


def random_model(tokenizer: Tokenizer, seed: int = 0, **changes: Any) -> PortableModel:
    """Returns a model with random parameters; `changes` are values by key, with __ in place of the
    dot.
    """
    config = TINY | {key.replace("__", "."): value for key, value in changes.items()}
    full = with_values(base.get_config(), config | {"tokenizer.shared": tokenizer.is_shared})
    shapes = named_leaves(abstract_init(full, *tokenizer.vocab_sizes)[1])
    random = np.random.default_rng(seed)
    parameters = {
        name: random.normal(size=leaf.shape, scale=0.6).astype(np.float32)
        for name, leaf in shapes.items()
    }
    return PortableModel(config, parameters, tokenizer)


def answers(
    model: PortableModel, folder: Path, entry: Format, python: Path, texts: Sequence[str]
) -> tuple[dict, dict]:
    """Returns what this project and the toolkit of a format answer about the texts."""
    config = certificate.float32_config(model, entry.search)
    request = {"folder": str(folder), "sources": list(texts), "quantization": None}
    request |= certificate.search_settings(texts, model, config)
    ours = certificate.decode(model, config, request)
    return ours, ask(python, entry.runtime, request | {"references": ours["references"]})
