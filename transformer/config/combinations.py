"""Values of configuration keys that are possible one by one and not together. `config.validate` applies the table."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Combination(NamedTuple):
    """The keys, whether the configuration `c` has such values of them, and what to do about it."""

    keys: tuple[str, ...]
    impossible: Callable[[Any], bool]
    advice: str


COMBINATIONS = (
    Combination(
        ("model.d_model", "model.num_heads", "model.d_k", "model.d_v"),
        lambda c: c.model.d_model % c.model.num_heads != 0 and None in (c.model.d_k, c.model.d_v),
        "d_model must be divisible by num_heads, or set both d_k and d_v",
    ),
    Combination(
        ("model.positions", "model.d_model"),
        lambda c: c.model.positions.startswith("sinusoidal") and c.model.d_model % 2 != 0,
        "sinusoids need an even d_model; make it even, or take positions=learned or rotary",
    ),
    Combination(
        ("model.positions", "model.attention"),
        lambda c: c.model.positions == "rotary" and c.model.attention != "dot_product",
        "turning queries and keys acts on dot products alone; take attention=dot_product or other positions",
    ),
    Combination(
        ("model.positions", "model.d_model", "model.num_heads", "model.d_k"),
        lambda c: (
            c.model.positions == "rotary"
            and (c.model.d_model // c.model.num_heads if c.model.d_k is None else c.model.d_k) % 2 != 0
        ),
        "rotary positions turn pairs of a head's elements; make d_k, or d_model / num_heads, even",
    ),
    Combination(
        ("model.positions", "model.max_positions", "data.max_length"),
        lambda c: c.model.positions == "learned" and c.data.max_length > c.model.max_positions,
        "learned positions must reach max_length; raise max_positions or lower max_length",
    ),
    Combination(
        ("model.positions", "model.max_positions", "decoding.max_source_length", "decoding.max_extra_length"),
        lambda c: (
            c.model.positions == "learned"
            and c.decoding.max_source_length + c.decoding.max_extra_length > c.model.max_positions
        ),
        "learned positions must reach max_source_length + max_extra_length; raise max_positions or lower the other two",
    ),
    Combination(
        ("model.share_embeddings", "tokenizer.shared"),
        lambda c: c.model.share_embeddings == "all" and not c.tokenizer.shared,
        "one matrix for both languages needs one vocabulary; take share_embeddings=target or shared=true",
    ),
    Combination(
        ("data.source", "tokenizer.kind"),
        lambda c: (c.data.source == "ids") != (c.tokenizer.kind == "ids"),
        "ids go with ids alone: set both, or neither",
    ),
    Combination(
        ("data.source", "data.path", "data.downloads"),
        lambda c: c.data.source in ("text", "ids") and not c.data.path and not c.data.downloads,
        "set path to the folder with the STEM.LANGUAGE files",
    ),
    Combination(
        ("data.source", "data.source_language", "data.target_language"),
        lambda c: c.data.source == "synthetic" and (c.data.source_language, c.data.target_language) != ("en", "de"),
        "synthetic numbers are spelled from en to de; set the languages so",
    ),
    Combination(
        ("tokenizer.kind", "tokenizer.sampling"),
        lambda c: c.tokenizer.sampling > 0 and c.tokenizer.kind not in ("bpe", "unigram"),
        "only bpe and unigram can sample a segmentation; set sampling=0",
    ),
    Combination(
        ("tokenizer.kind", "tokenizer.byte_fallback"),
        lambda c: c.tokenizer.byte_fallback and c.tokenizer.kind not in ("bpe", "unigram"),
        "only bpe and unigram can fall back to bytes; set byte_fallback=false",
    ),
    Combination(
        ("tokenizer.vocab_size", "tokenizer.byte_fallback"),
        lambda c: c.tokenizer.byte_fallback and not c.tokenizer.model_file and c.tokenizer.vocab_size <= 260,
        "256 bytes and 4 special pieces leave no room for others; raise vocab_size",
    ),
    Combination(
        ("tokenizer.kind", "tokenizer.model_file"),
        lambda c: c.tokenizer.kind == "ids" and c.tokenizer.model_file != "",
        "ids need no SentencePiece model; leave model_file empty",
    ),
    Combination(
        ("tokenizer.model_file", "tokenizer.shared"),
        lambda c: (
            c.tokenizer.model_file != "" and len(c.tokenizer.model_file.split(",")) != (1 if c.tokenizer.shared else 2)
        ),
        "give one model file if shared, SOURCE,TARGET if not",
    ),
    Combination(
        ("decoding.beam_size", "tokenizer.vocab_size"),
        lambda c: not c.tokenizer.model_file and c.decoding.beam_size > c.tokenizer.vocab_size,
        "the beam cannot be larger than the vocabulary",
    ),
    Combination(
        ("training.eval_beam_size", "tokenizer.vocab_size"),
        lambda c: not c.tokenizer.model_file and c.training.eval_beam_size > c.tokenizer.vocab_size,
        "the beam cannot be larger than the vocabulary",
    ),
    Combination(
        ("batch.plan", "batch.packed_length", "data.max_length"),
        lambda c: c.batch.plan == "packed" and c.batch.packed_length < c.data.max_length,
        "a packed row must hold the longest pair; raise packed_length or lower max_length",
    ),
    Combination(
        ("batch.tokens", "batch.row_multiple", "data.max_length"),
        lambda c: c.batch.plan == "buckets" and c.batch.tokens < c.batch.row_multiple * c.data.max_length,
        "a batch must hold row_multiple pairs of max_length; raise tokens or lower the other two",
    ),
    Combination(
        ("batch.tokens", "batch.row_multiple", "batch.packed_length"),
        lambda c: c.batch.plan == "packed" and c.batch.tokens < c.batch.row_multiple * c.batch.packed_length,
        "a batch must hold row_multiple rows of packed_length; raise tokens or lower the other two",
    ),
    Combination(
        ("batch.row_multiple", "mesh.data", "mesh.fsdp"),
        lambda c: c.batch.row_multiple % (max(c.mesh.data, 1) * c.mesh.fsdp) != 0,
        "rows are split over data x fsdp devices; make row_multiple a multiple of their product",
    ),
    Combination(
        ("optimizer.name", "optimizer.weight_decay"),
        lambda c: c.optimizer.name == "adam" and c.optimizer.weight_decay > 0,
        "adam has no weight decay; take adamw or set weight_decay=0",
    ),
    Combination(
        ("optimizer.warmup_steps", "training.steps"),
        lambda c: c.optimizer.warmup_steps > c.training.steps,
        "warm-up would be longer than training; lower warmup_steps or raise steps",
    ),
    Combination(
        ("training.eval_every", "training.steps"),
        lambda c: c.training.eval_every > c.training.steps,
        "training would end before the first validation; lower eval_every or raise steps",
    ),
    Combination(
        ("training.r_drop", "model.dropout", "model.attention_dropout", "model.activation_dropout"),
        lambda c: (
            c.training.r_drop > 0 and not any((c.model.dropout, c.model.attention_dropout, c.model.activation_dropout))
        ),
        "two passes are equal without dropout; set r_drop=0, or a dropout above 0",
    ),
    Combination(
        ("checkpoint.best_metric", "training.eval_bleu"),
        lambda c: c.checkpoint.best_metric == "bleu" and not c.training.eval_bleu,
        "bleu is not computed; set eval_bleu=true or best_metric=loss",
    ),
)
