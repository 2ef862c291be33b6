"""Fused attention equals the plain form in values and gradients; each kernel is used on its devices
and masks only.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh

from tests.meshes import one_device
from tests.model.models import (
    LARGE,
    batch_of,
    sentences,
    tiny_config,
    tiny_transformer,
)
from transformer.distributed.mesh import AXES, AXIS_TYPES
from transformer.model import attention
from transformer.model.attention import dot_product_score, masked_softmax
from transformer.model.fused_attention import (
    ATTENTION_IMPLEMENTATIONS,
    CUDNN,
    FusedAttention,
    cudnn_attention,
    fused_attention,
    splash_attention,
)
from transformer.model.masks import Mask

ROWS, LENGTH, SOURCE, HEADS, WIDTH = 3, 128, 256, 2, 64
# Largest differences of values and gradients, relative to the largest value.
TOLERANCES = {"float32": 2e-6, "bfloat16": 2**-6}
GPU = pytest.mark.skipif(jax.default_backend() != "gpu", reason="cuDNN needs a GPU")
TPU = pytest.mark.skipif(
    jax.default_backend() != "tpu", reason="without interpretation the kernel needs a TPU"
)
ON_GPU = {"marks": [GPU], "id": "cudnn"}
PADDED = [
    pytest.param(partial(cudnn_attention, implementation="xla"), id="xla"),
    pytest.param(cudnn_attention, **ON_GPU),
]
PACKED = [
    pytest.param(partial(splash_attention, interpret=True), id="splash-interpreted"),
    pytest.param(splash_attention, marks=[TPU], id="splash"),
]


def plain_attention(queries, keys, values, mask):
    weights = masked_softmax(dot_product_score(queries, keys), mask.dense).astype(values.dtype)
    return jnp.einsum("bhts,bshd->bthd", weights, values)


def segments(length: int, sentences: list[list[int]]) -> jax.Array:
    """Returns the segments of rows that hold sentences of these lengths."""
    rows = np.zeros((len(sentences), length), np.int32)
    for row, lengths in zip(rows, sentences, strict=True):
        row[: sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return jnp.asarray(rows)


def padded_mask(kind: str) -> Mask:
    """Returns the mask of a short, an empty and a full row."""
    target = segments(LENGTH, [[5], [], [LENGTH]])
    source = target if kind != "cross" else segments(SOURCE, [[200], [], [SOURCE]])
    return Mask(target, source, is_causal=kind == "causal", is_packed=False)


def packed_mask(kind: str) -> Mask:
    """Returns the mask of a row with padding, an empty one, and a full one."""
    target = segments(LENGTH, [[5, 60, 20], [], [64, 64]])
    source = target if kind != "cross" else segments(SOURCE, [[100, 3, 90], [], [200, 56]])
    return Mask(target, source, is_causal=kind == "causal", is_packed=True)


def results(attend, mask: Mask, dtype: str) -> list[np.ndarray]:
    """Returns the heads at tokens, and the gradients of queries, keys and values of a random sum
    over them.
    """
    random = np.random.default_rng(0)
    shape = (ROWS, mask.query_segments.shape[1], HEADS, WIDTH)
    queries, cotangent = (random.normal(size=shape).astype(np.float32) for _ in range(2))
    keys, values = (
        random.normal(size=(ROWS, mask.key_segments.shape[1], HEADS, WIDTH)) for _ in range(2)
    )
    is_token = (mask.query_segments != 0)[:, :, None, None]

    def loss(*inputs):
        heads = attend(*inputs, mask)
        assert heads.dtype == dtype
        return jnp.sum(jnp.where(is_token, heads, 0) * cotangent), heads

    inputs = [jnp.asarray(x, dtype) for x in (queries, keys, values)]
    gradients, heads = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*inputs)
    assert np.isfinite(np.asarray(heads, np.float32)).all()
    return [np.asarray(x, np.float32) for x in (jnp.where(is_token, heads, 0), *gradients)]


def assert_equals_plain(attend, mask: Mask, dtype: str) -> None:
    """Compares with the plain form in float32, whose own rounding the tolerance need not cover."""
    exact = results(plain_attention, mask, "float32")
    for fused, plain in zip(results(attend, mask, dtype), exact, strict=True):
        np.testing.assert_allclose(
            fused, plain, rtol=0, atol=TOLERANCES[dtype] * np.abs(plain).max()
        )


@pytest.mark.first_case
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("attend", PADDED)
def test_attention_by_lengths_equals_the_plain_form(attend, kind, dtype):
    if dtype == "float32" and attend is cudnn_attention:
        pytest.skip("cuDNN computes in 16 bits")
    assert_equals_plain(attend, padded_mask(kind), dtype)


def test_cudnn_gets_no_empty_rows(monkeypatch):
    given = {}
    monkeypatch.setattr(
        jax.nn,
        "dot_product_attention",
        lambda *inputs, **options: given.update(options) or inputs[0],
    )
    queries = jnp.zeros((ROWS, LENGTH, HEADS, WIDTH), jnp.bfloat16)
    cudnn_attention(queries, queries, queries, padded_mask("causal"))
    assert (
        given["query_seq_lengths"].tolist()
        == given["key_value_seq_lengths"].tolist()
        == [5, 1, LENGTH]
    )
    assert given["is_causal"] and given["implementation"] == "cudnn"


@pytest.mark.first_case
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("attend", PACKED)
def test_attention_within_segments_equals_the_plain_form(attend, kind, dtype):
    assert_equals_plain(attend, packed_mask(kind), dtype)


H100 = {
    "kind": "NVIDIA H100 80GB HBM3",
    "platform": "gpu",
    "dtype": "bfloat16",
    "width": WIDTH,
    "mesh": (1, 1, 1),
}
V5E = H100 | {"kind": "TPU v5 lite", "platform": "tpu"}
CPU = H100 | {"kind": "cpu", "platform": "cpu"}
AMD = H100 | {"kind": "AMD Instinct MI300X"}
BY_LENGTHS, BY_SEGMENTS = padded_mask("causal"), packed_mask("cross")
SHORT = Mask(
    segments(62, [[9], [], [62]]), segments(128, [[9], [], [128]]), is_causal=False, is_packed=False
)
ODD = Mask(
    segments(129, [[9], [], [129]]),
    segments(128, [[9], [], [128]]),
    is_causal=False,
    is_packed=True,
)
CHOICES = [
    ("auto", BY_LENGTHS, H100, "cudnn_attention"),
    ("plain", BY_LENGTHS, H100, "plain"),
    ("auto", BY_LENGTHS, H100 | {"dtype": "float32"}, "plain"),
    ("auto", BY_LENGTHS, H100 | {"width": 36}, "plain"),
    ("auto", BY_LENGTHS, H100 | {"width": 136}, "plain"),
    ("auto", BY_LENGTHS, H100 | {"width": 32}, "cudnn_attention"),
    ("auto", BY_LENGTHS, H100 | {"width": 16}, "plain"),
    ("auto", BY_LENGTHS, H100 | {"mesh": (1, 1, 2)}, "cudnn_attention"),
    ("auto", BY_LENGTHS, H100 | {"mesh": (1, 3, 1)}, "cudnn_attention"),
    ("auto", BY_LENGTHS, H100 | {"mesh": (2, 1, 1)}, "plain"),  # three rows
    ("auto", BY_LENGTHS, H100 | {"mesh": (1, 1, 4)}, "plain"),  # two heads
    ("auto", ODD.replace(is_packed=False), H100, "plain"),
    ("auto", SHORT, H100, "plain"),
    ("cudnn", SHORT, H100, "cudnn_attention"),
    ("cudnn", ODD.replace(is_packed=False), H100, "plain"),
    ("cudnn", BY_SEGMENTS, V5E, "plain"),
    ("auto", BY_LENGTHS, AMD, "plain"),
    ("auto", BY_LENGTHS, V5E, "plain"),
    ("auto", BY_LENGTHS, CPU, "plain"),
    ("auto", BY_SEGMENTS, H100, "plain"),
    ("auto", BY_SEGMENTS, V5E, "splash_attention"),
    ("plain", BY_SEGMENTS, V5E, "plain"),
    ("auto", ODD, V5E, "plain"),
    ("auto", BY_SEGMENTS, V5E | {"dtype": "float32"}, "plain"),
    ("auto", BY_SEGMENTS, CPU, "plain"),
]


@pytest.mark.parametrize(("name", "mask", "case", "expected"), CHOICES)
def test_a_kernel_is_used_on_its_devices_and_masks(name, mask, case, expected):
    called = []

    def recorded(kernel):
        def attend(queries, keys, values, mask):
            called.append(kernel.attend.__name__)
            return queries

        return kernel._replace(attend=attend)

    kernels = [recorded(kernel) for kernel in ATTENTION_IMPLEMENTATIONS[name]]
    queries, keys = (
        jax.ShapeDtypeStruct((ROWS, of.shape[1], HEADS, case["width"]), case["dtype"])
        for of in (mask.query_segments, mask.key_segments)
    )
    device = AbstractDevice(device_kind=case["kind"], num_cores=None, platform=case["platform"])
    with jax.sharding.use_abstract_mesh(
        AbstractMesh(case["mesh"], AXES, AXIS_TYPES, abstract_device=device)
    ):
        heads = jax.eval_shape(
            lambda *inputs: fused_attention(kernels, *inputs, mask), queries, keys, keys
        )
    assert (called[0] if called else "plain") == expected
    assert (heads is None) == (expected == "plain")


def test_without_a_mesh_attention_is_plain():
    queries = jnp.ones((ROWS, LENGTH, HEADS, WIDTH), jnp.bfloat16)
    assert (
        fused_attention(ATTENTION_IMPLEMENTATIONS["auto"], queries, queries, queries, BY_LENGTHS)
        is None
    )


def on_cpu(kernel: FusedAttention, calls: list[Mask]) -> FusedAttention:
    """Returns a kernel of cuDNN that records its masks, computed by XLA."""

    def attend(queries, keys, values, mask):
        calls.append(mask)
        return kernel.attend(queries, keys, values, mask, implementation="xla")

    return kernel._replace(
        attend=attend, runs_on=lambda device: True, accepts=lambda queries, keys, is_packed: True
    )


@pytest.mark.slow
def test_gradients_over_a_mesh_equal_those_of_the_plain_form():
    kernels, mask = [on_cpu(CUDNN, [])], padded_mask("causal")
    with jax.set_mesh(one_device()):
        assert_equals_plain(jax.jit(partial(fused_attention, kernels)), mask, "bfloat16")


def test_logits_of_the_model_are_those_of_plain_attention(monkeypatch):
    calls = []
    monkeypatch.setitem(ATTENTION_IMPLEMENTATIONS, "auto", (on_cpu(CUDNN, calls),))
    lengths = [(7, 3), (4, 6), (8, 1)]  # the other rows have no tokens
    batch = batch_of(sentences(lengths), [0, 1, 2], LARGE, packed=False)
    is_token, logits = batch.pop("target_output") != 0, {}
    for name in ("plain", "auto"):
        model = tiny_transformer(
            dtype="bfloat16", num_layers=1, attention_implementation=name
        ).module
        with jax.set_mesh(one_device()):
            logits[name] = np.asarray(
                jax.jit(lambda batch, model=model: model(**batch))(batch)[is_token]
            )
    # encoder, decoder and cross-attention
    expected = [(False, 16, 16), (True, 12, 12), (False, 12, 16)]
    assert [
        (mask.is_causal, mask.query_segments.shape[1], mask.key_segments.shape[1]) for mask in calls
    ] == expected
    np.testing.assert_allclose(
        logits["auto"], logits["plain"], rtol=0, atol=2**-6 * np.abs(logits["plain"]).max()
    )


@pytest.mark.parametrize(
    "change",
    [{"attention": "additive"}, {"attention": "dot_product_unscaled"}, {"attention_dropout": 0.1}],
)
def test_other_scores_and_dropout_of_weights_are_plain(change, monkeypatch):
    monkeypatch.setattr(
        attention, "fused_attention", lambda *arguments: pytest.fail("a kernel was tried")
    )
    module = attention.MultiHeadAttention(tiny_config(dtype="bfloat16", **change), rngs=nnx.Rngs(0))
    segments = jnp.ones((1, 4), int)
    x = jnp.ones((1, 4, 16), jnp.bfloat16)
    module(x, x, Mask(segments, segments, is_causal=False, is_packed=False))
