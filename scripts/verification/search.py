"""Beam search on devices against the host's CPU, and matmuls that a compiler gets wrong."""

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
# The fraction of the sentences that may differ.
DIFFERING = 0.1
SIZES = (SIZE.vocab_size, SIZE.vocab_size)


def constant_matrices(x: jax.Array) -> jax.Array:
    return jnp.full_like(x, 0.37)


# Forms of a matmul that XLA on CPUs computes wrongly (jax-ml/jax#37465).
FAULTS = {
    "a matrix of one value, summed": lambda x: (x @ constant_matrices(x)).sum(-1),
    "softmax and a matrix of one value": lambda x: (jax.nn.softmax(x) @ constant_matrices(x)).max(
        -1
    ),
    "a value for each matrix": lambda x: (x @ jnp.broadcast_to(x[:, :1, :1], x.shape)).sum(-1),
    "a transposed matrix for all": lambda x: jnp.einsum(
        "bij,bkj->bik", x, jnp.broadcast_to(x[:1], x.shape)
    ).sum(-1),
}


def reference() -> Iterator[tuple[dict, list[list[int]]]]:
    """Yields random parameters and their best hypotheses, in the process on the host's CPU."""
    initialize = jax.jit(lambda: init_model(make_config("float32"), *SIZES)[1])
    parameters = jax.device_get(initialize())
    yield parameters, translations(parameters)


def translations(parameters: dict) -> list[list[int]]:
    """Returns the best hypotheses of a search in float32 on all devices."""
    config = make_config("float32")

    # Short outputs, in batches that hold several sentences.
    config.decoding.update({"max_source_length": 24, "max_extra_length": 8, "batch_tokens": 1024})
    random = np.random.default_rng(4)

    texts = []
    for length in random.integers(1, 20, SENTENCES):
        numbers = random.integers(0, SIZE.vocab_size - 4, length)
        texts.append(" ".join(map(str, numbers)))

    vocabulary = IdsVocabulary(SIZE.vocab_size)
    tokenizer = Tokenizer(vocabulary, vocabulary)
    graph, _ = abstract_init(config, *SIZES)
    decoder = TextDecoder([graph], tokenizer, config.decoding, jax.local_devices())
    placed = decoder.place([parameters])
    return [list(best.tokens) for (best,) in decoder.translate(placed, texts)]


def check_search() -> Iterator[Outcome]:
    """Yields the fraction of sentences with other tokens than on the host."""
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
    """Yields the errors of the matmuls.

    A matmul that `transformer.support.programs` refuses before it runs has no error.
    """
    x = np.random.default_rng(5).random((5, 60, 60), np.float32)
    for name, function in FAULTS.items():
        # One operation at a time is exact: the fault is in the compilation of several together.
        with jax.disable_jit():
            exact = np.asarray(function(jnp.asarray(x)))
        try:
            program = compile_program(jax.jit(function).lower(x))
            error = relative_error(program(x), exact)
        except UserError:
            error = 0.0
        yield Outcome(f"product with {name}", error, 1e-4)
