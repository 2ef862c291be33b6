"""Combinations of the keys of the model, and of these with others, that no run can have."""

from transformer.config.combinations import Combination
from transformer.config_types import Config, head_widths


def _is_fused(c: Config) -> bool:
    return c.model.attention_implementation in ("cudnn", "splash")


COMBINATIONS = (
    Combination(
        ("model.d_model", "model.num_heads", "model.d_k", "model.d_v"),
        lambda c: c.model.d_model % c.model.num_heads != 0 and None in (c.model.d_k, c.model.d_v),
        "d_model must be divisible by num_heads, or set both d_k and d_v",
    ),
    Combination(
        ("model.positions", "model.d_model"),
        lambda c: c.model.positions.startswith("sinusoidal") and c.model.d_model % 2 != 0,
        "sinusoidal positions need an even d_model; make it even, or use positions=learned or rotary",
    ),
    Combination(
        ("model.positions", "model.attention"),
        lambda c: c.model.positions == "rotary" and c.model.attention != "dot_product",
        "rotary positions need dot-product attention; use attention=dot_product or other positions",
    ),
    Combination(
        ("model.positions", "model.d_model", "model.num_heads", "model.d_k"),
        lambda c: c.model.positions == "rotary" and head_widths(c.model)[0] % 2 != 0,
        "rotary positions need an even head width; make d_k, or d_model / num_heads, even",
    ),
    Combination(
        ("model.attention_implementation", "model.attention", "model.attention_dropout", "model.dtype"),
        lambda c: (
            _is_fused(c)
            and ((c.model.attention, c.model.attention_dropout) != ("dot_product", 0.0) or c.model.dtype == "float32")
        ),
        "cudnn and splash compute dot-product attention in bfloat16 without attention dropout; use auto or plain",
    ),
    Combination(
        ("model.attention_implementation", "model.d_model", "model.num_heads", "model.d_k", "model.d_v"),
        lambda c: _is_fused(c) and len(set(head_widths(c.model))) > 1,
        "cudnn and splash need queries, keys and values of one width; make d_k and d_v equal, or use auto or plain",
    ),
    Combination(
        ("model.attention_implementation", "model.d_model", "model.num_heads", "model.d_k"),
        lambda c: (
            c.model.attention_implementation == "cudnn"
            and (head_widths(c.model)[0] % 8 != 0 or head_widths(c.model)[0] > 128)
        ),
        "cudnn needs heads of a multiple of 8 and at most 128 dimensions; change num_heads or d_k, or use auto",
    ),
    Combination(
        ("model.attention_implementation", "batch.plan", "batch.packed_length"),
        lambda c: (
            c.model.attention_implementation == "splash"
            and (c.batch.plan != "packed" or c.batch.packed_length % 128 != 0)
        ),
        "splash needs packed rows of a multiple of 128 positions; use auto or plain, or plan=packed and such a length",
    ),
    Combination(
        ("batch.packed_length", "batch.plan", "model.attention_implementation"),
        lambda c: (
            c.model.attention_implementation == "cudnn" and c.batch.plan == "packed" and c.batch.packed_length % 2 != 0
        ),
        "cudnn needs packed rows of an even length; change packed_length, or use auto or plain",
    ),
    Combination(
        ("model.positions", "model.max_positions", "data.max_length"),
        lambda c: c.model.positions == "learned" and c.data.max_length > c.model.max_positions,
        "learned positions must cover max_length; raise max_positions or lower max_length",
    ),
    Combination(
        ("model.positions", "model.max_positions", "decoding.max_source_length", "decoding.max_extra_length"),
        lambda c: (
            c.model.positions == "learned"
            and c.decoding.max_source_length + c.decoding.max_extra_length > c.model.max_positions
        ),
        "learned positions must cover max_source_length + max_extra_length; raise max_positions or lower the other two",
    ),
    Combination(
        ("model.share_embeddings", "tokenizer.shared"),
        lambda c: c.model.share_embeddings == "all" and not c.tokenizer.shared,
        "shared embeddings need a shared vocabulary; use share_embeddings=target or shared=true",
    ),
)
