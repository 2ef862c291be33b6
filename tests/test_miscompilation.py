"""The check for products that XLA computes wrongly on CPUs, against the results of the programs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.support.errors import UserError
from transformer.support.miscompilation import FLAG
from transformer.support.programs import Programs, compile_program

E = np.random.default_rng(0).random((5, 60, 60), np.float32)
WRONG = {
    "sum": lambda e: (e @ jnp.full_like(e, 0.37)).sum(-1),
    "softmax": lambda e: (jax.nn.softmax(e) @ jnp.full_like(e, 0.37)).max(-1),
    "a_value_a_sentence": lambda e: (e @ jnp.broadcast_to(e[:, :1, :1], e.shape)).sum(-1),
    "one_column": lambda e: (e @ jnp.broadcast_to(e[0, 0, :, None], e.shape)).sum(-1),
    "one_transposed_matrix": lambda e: jnp.einsum(
        "bij,bkj->bik", e, jnp.broadcast_to(e[:1], e.shape)
    ).sum(-1),
    "heads": lambda e: jnp.einsum(
        "bhij,bhjd->bhid", e.reshape(5, 4, 15, 60), jnp.full((5, 4, 60, 60), 0.37)
    ).sum(-1),
}
RIGHT = {
    "not_reduced": lambda e: e @ jnp.full_like(e, 0.37),
    "left": lambda e: (jnp.full_like(e, 0.37) @ e).sum(-1),
    "one_row": lambda e: (e @ jnp.broadcast_to(e[0, 0], e.shape)).sum(-1),
    "one_matrix": lambda e: (e @ jnp.broadcast_to(e[:1], e.shape)).sum(-1),
    "one_vector": lambda e: jnp.einsum("bij,bkj->bik", e, jnp.broadcast_to(e[0, 0], e.shape)).sum(
        -1
    ),
    "as_a_sum": lambda e: (0.37 * e.sum(-1, keepdims=True) * jnp.ones_like(e)).sum(-1),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_product_is_an_error_of_one_line(name):
    """The wrong results themselves depend on what the memory has, so no test can expect them."""
    with pytest.raises(
        UserError, match=rf"^jit\(<lambda>\)/.*dot_general: XLA computes .*={re.escape(FLAG)}, .*$"
    ):
        compile_program(jax.jit(WRONG[name]).lower(E))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_product_passes(name):
    program = compile_program(jax.jit(RIGHT[name]).lower(E))
    with jax.disable_jit():
        expected = RIGHT[name](jnp.asarray(E))
    np.testing.assert_allclose(program(E), expected, rtol=1e-5)


def test_training_and_decoding_check_their_programs():
    programs, wrong = Programs(), jax.jit(lambda parameters, e: WRONG["sum"](e))
    for device in (None, jax.devices()[0]):  # as training and decoding compile
        with pytest.raises(UserError, match="XLA computes this matmul wrongly"):
            programs.compile(wrong, (), E, device=device)
    assert not programs.compiled
