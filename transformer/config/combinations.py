"""Combinations of values that no run can have, although each value is allowed: data to decoding, without the model.

`checking.checked` applies this table and those of the model and of the objectives.
"""

from collections.abc import Callable
from typing import NamedTuple

from transformer.config_types import Config


class Combination(NamedTuple):
    """Keys with values that exclude each other, and the advice that ends the error message."""

    keys: tuple[str, ...]
    is_impossible: Callable[[Config], bool]
    advice: str


def _longest_bucket(c: Config) -> int:
    return -(-c.data.max_length // c.batch.length_multiple) * c.batch.length_multiple


COMBINATIONS = (
    Combination(
        ("data.source", "tokenizer.kind"),
        lambda c: (c.data.source == "ids") != (c.tokenizer.kind == "ids"),
        "source=ids needs kind=ids, and kind=ids needs source=ids; set both or neither",
    ),
    Combination(
        ("data.source", "data.source_language", "data.target_language"),
        lambda c: (
            c.data.source == "synthetic"
            and not (c.data.source_language in ("en", "") and c.data.target_language in ("de", ""))
        ),
        "synthetic data is en to de; set source_language=en and target_language=de",
    ),
    Combination(
        ("tokenizer.kind", "tokenizer.subword_sampling"),
        lambda c: c.tokenizer.subword_sampling > 0 and c.tokenizer.kind not in ("bpe", "unigram"),
        "only bpe and unigram support subword sampling; set subword_sampling=0",
    ),
    Combination(
        ("tokenizer.kind", "tokenizer.byte_fallback"),
        lambda c: c.tokenizer.byte_fallback and c.tokenizer.kind not in ("bpe", "unigram"),
        "only bpe and unigram support byte fallback; set byte_fallback=false",
    ),
    Combination(
        ("training.init_from", "model.source_vectors", "model.target_vectors"),
        lambda c: bool(c.training.init_from and (c.model.source_vectors or c.model.target_vectors)),
        "embeddings come from another run or from files; set init_from, or source_vectors and target_vectors",
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
        "a shared tokenizer has one model file, others have SOURCE,TARGET",
    ),
    Combination(
        ("batch.plan", "batch.packed_length", "data.max_length"),
        lambda c: c.batch.plan == "packed" and c.batch.packed_length < c.data.max_length,
        "a packed row must hold the longest pair; raise packed_length or lower max_length",
    ),
    Combination(
        ("batch.tokens", "batch.row_multiple", "data.max_length", "batch.length_multiple"),
        lambda c: c.batch.plan == "buckets" and c.batch.tokens < c.batch.row_multiple * _longest_bucket(c),
        "a batch must hold row_multiple pairs of max_length, rounded up to length_multiple; "
        "raise tokens or lower the others",
    ),
    Combination(
        ("batch.tokens", "batch.row_multiple", "batch.packed_length"),
        lambda c: c.batch.plan == "packed" and c.batch.tokens < c.batch.row_multiple * c.batch.packed_length,
        "a batch must hold row_multiple rows of packed_length; raise tokens or lower the other two",
    ),
    Combination(
        ("optimizer.name", "optimizer.weight_decay"),
        lambda c: c.optimizer.name == "adam" and c.optimizer.weight_decay > 0,
        "adam has no weight decay; use adamw or set weight_decay=0",
    ),
    Combination(
        ("optimizer.warmup_steps", "training.steps"),
        lambda c: c.optimizer.warmup_steps > c.training.steps,
        "warm-up is longer than training; lower warmup_steps or raise steps",
    ),
    Combination(
        ("training.eval_every", "training.steps"),
        lambda c: c.training.eval_every > c.training.steps,
        "training ends before the first validation; lower eval_every or raise steps",
    ),
    Combination(
        ("training.r_drop", "model.dropout", "model.attention_dropout", "model.activation_dropout"),
        lambda c: (
            c.training.r_drop > 0 and not any((c.model.dropout, c.model.attention_dropout, c.model.activation_dropout))
        ),
        "R-Drop needs dropout; set r_drop=0, or one of the dropout rates above 0",
    ),
    Combination(
        ("training.init_from", "training.init_skip"),
        lambda c: c.training.init_from == "" and c.training.init_skip != "",
        "there is no other run to take parameters from; name it in init_from, or leave init_skip empty",
    ),
    Combination(
        ("checkpoint.best_metric", "training.eval_bleu"),
        lambda c: c.checkpoint.best_metric == "bleu" and not c.training.eval_bleu,
        "bleu is not computed; set eval_bleu=true or best_metric=loss",
    ),
    Combination(
        ("decoding.shortlist", "decoding.strategy"),
        lambda c: c.decoding.shortlist > 0 and c.decoding.strategy != "beam",
        "a shortlist is for beam search; set shortlist=0 or strategy=beam",
    ),
)
