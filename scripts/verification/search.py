"""Beam search on devices against the search on the host's CPU, and products that a compiler is
known to get wrong.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from scripts.verification.outcomes import Outcome, relative_error
from scripts.verification.processes import HOST, results_of
from scripts.verification.training import SIZE, make_config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding.text_decoder import TextDecoder
from transformer.support.errors import UserError
from transformer.support.programs import compile_program
from transformer.training.state import abstract_init, init_model

SENTENCES = 24
DIFFERING = 0.1  # fraction of the sentences that may differ
SIZES = SIZE.vocab_size, SIZE.vocab_size
# Forms of a product that XLA on CPUs computes wrongly (jax-ml/jax#37465).
FAULTS = {
    "a matrix of one value, summed": lambda e: (e @ jnp.full_like(e, 0.37)).sum(-1),
    "softmax and a matrix of one value": lambda e: (jax.nn.softmax(e) @ jnp.full_like(e, 0.37)).max(
        -1
    ),
    "a value for each matrix": lambda e: (e @ jnp.broadcast_to(e[:, :1, :1], e.shape)).sum(-1),
    "a transposed matrix for all": lambda e: jnp.einsum(
        "bij,bkj->bik", e, jnp.broadcast_to(e[:1], e.shape)
    ).sum(-1),
}


def reference() -> Iterator[tuple[dict, list[list[int]]]]:
    """Yields random parameters, and the best hypotheses with them. To be called on the host."""
    parameters = jax.device_get(jax.jit(lambda: init_model(make_config("float32"), *SIZES)[1])())
    yield parameters, translations(parameters)


def translations(parameters: dict) -> list[list[int]]:
    """Returns the best hypotheses of a search in float32 on all devices."""
    config = make_config("float32")
    config.decoding.update({"max_source_length": 24, "max_extra_length": 8, "batch_tokens": 1024})
    random = np.random.default_rng(4)
    vocabulary = IdsVocabulary(SIZE.vocab_size)
    lengths = random.integers(1, 20, SENTENCES)
    texts = [
        " ".join(map(str, random.integers(0, SIZE.vocab_size - 4, length))) for length in lengths
    ]
    tokenizer = Tokenizer(vocabulary, vocabulary)
    decoder = TextDecoder(
        [abstract_init(config, *SIZES)[0]], tokenizer, config.decoding, jax.local_devices()
    )
    return [list(best.tokens) for (best,) in decoder.translate(decoder.place([parameters]), texts)]


def check_search() -> Iterator[Outcome]:
    """Yields the fraction of sentences whose best hypothesis has other tokens than on the host."""
    ((parameters, expected),) = results_of(f"{__name__}:reference", environment=HOST)
    pairs = zip(translations(parameters), expected, strict=True)
    differing = sum(tokens != expected_tokens for tokens, expected_tokens in pairs)
    # Rounding decides between hypotheses of almost equal scores, which random parameters have.
    yield Outcome(
        "beam search in float32: fraction of sentences with another translation",
        differing / SENTENCES,
        DIFFERING,
    )


def check_faults() -> Iterator[Outcome]:
    """Yields the errors of the products, 0 for those that `transformer.support.programs` refuses
    before they run.
    """
    e = np.random.default_rng(5).random((5, 60, 60), np.float32)
    for name, function in FAULTS.items():
        with jax.disable_jit():
            exact = np.asarray(function(jnp.asarray(e)))
        try:
            error = relative_error(compile_program(jax.jit(function).lower(e))(e), exact)
        except UserError:
            error = 0.0
        yield Outcome(f"product with {name}", error, 1e-4)
