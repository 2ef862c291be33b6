"""Portable models with random parameters, for tests."""

from typing import Any

import jax
import numpy as np

from configs import base
from scripts.interop.portable import PortableModel
from transformer.checkpoints.restore import named_leaves
from transformer.config.loading import with_values
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.training.state import abstract_init

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
    "decoding.max_source_length": 32,
    "decoding.batch_tokens": 256,
}


def random_model(tokenizer: Tokenizer, seed: int = 0, **changes: Any) -> PortableModel:
    """Returns a model with random parameters; `changes` are values by key, with __ in place of the dot."""
    config = TINY | {key.replace("__", "."): value for key, value in changes.items()}
    vocabulary = {"tokenizer.shared": tokenizer.source is tokenizer.target}
    full = with_values(base.get_config(), config | vocabulary)
    shapes = named_leaves(abstract_init(full, *tokenizer.vocab_sizes)[1])
    random = np.random.default_rng(seed)
    parameters = {name: random.normal(size=leaf.shape, scale=0.6).astype(np.float32) for name, leaf in shapes.items()}
    return PortableModel(config, parameters, tokenizer)


def make_tokenizer(texts: list[str], size: int = 60, sides: int = 1) -> Tokenizer:
    """Returns a small SentencePiece tokenizer trained on the texts, with a vocabulary for one or two `sides`."""
    import io

    import sentencepiece

    from transformer.data.tokenizers.vocabulary import SentencePieceVocabulary

    vocabularies = []
    for side in range(sides):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, model_type="unigram", vocab_size=size + side,
            pad_id=0, unk_id=1, bos_id=2, eos_id=3, minloglevel=2,
        )  # fmt: skip
        vocabularies.append(SentencePieceVocabulary(model.getvalue()))
    return Tokenizer(vocabularies[0], vocabularies[-1])


def trees_equal(first: dict, second: dict) -> None:
    jax.tree.map(np.testing.assert_array_equal, first, second)
