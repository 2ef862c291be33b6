"""Combinations of an objective with values that it does not allow."""

from typing import Any

from configs.rules import implementations
from transformer.config.combinations import Combination
from transformer.config_types import Config


def _sides(c: Config) -> tuple[bool, bool]:
    return bool(c.data.source_language), bool(c.data.target_language)


def _objective(c: Config) -> Any:
    return implementations("transformer.training.objectives:OBJECTIVES")[c.training.objective]


COMBINATIONS = (
    Combination(
        ("training.objective", "data.source_language", "data.target_language"),
        lambda c: _sides(c) != _objective(c).sides,
        "translation and ctc need both languages, masked_lm the source's only, causal_lm the target's only; "
        "a side that is not there has an empty language",
    ),
    Combination(
        ("training.objective", "tokenizer.shared"),
        lambda c: not all(_sides(c)) and not c.tokenizer.shared,
        "monolingual text has one vocabulary; set shared=true",
    ),
    Combination(
        ("training.objective", "training.eval_bleu"),
        lambda c: not _objective(c).translates and c.training.eval_bleu,
        "only translations have BLEU; set eval_bleu=false and checkpoint.best_metric=loss",
    ),
    Combination(
        ("training.objective", "decoding.strategy"),
        lambda c: (c.training.objective == "ctc") != (c.decoding.strategy == "ctc"),
        "objective=ctc needs strategy=ctc, which no other objective has; set both or neither",
    ),
    Combination(
        ("training.objective", "model.positions", "model.ctc_frames", "model.max_positions", "data.max_length"),
        lambda c: (
            c.training.objective == "ctc"
            and c.model.positions == "learned"
            and c.model.ctc_frames * max(c.data.max_length, c.decoding.max_source_length) > c.model.max_positions
        ),
        "learned positions must cover ctc_frames for each token of max_length and decoding.max_source_length; "
        "raise max_positions or lower the others",
    ),
    Combination(
        ("training.objective", "model.source_vectors", "model.target_vectors"),
        lambda c: c.training.objective != "translation" and bool(c.model.source_vectors or c.model.target_vectors),
        "only translation models read word vectors; leave source_vectors and target_vectors empty",
    ),
    Combination(
        ("training.objective", "batch.plan"),
        lambda c: c.training.objective == "ctc" and c.batch.plan == "packed",
        "ctc reads one sentence a row; set plan=buckets",
    ),
    Combination(
        ("training.objective", "training.label_smoothing"),
        lambda c: c.training.objective == "ctc" and c.training.label_smoothing > 0,
        "ctc has no label smoothing; set label_smoothing=0",
    ),
    Combination(
        ("training.objective", "training.r_drop"),
        lambda c: c.training.objective in ("masked_lm", "ctc") and c.training.r_drop > 0,
        "R-Drop compares the distributions of two passes at the same target token; set r_drop=0",
    ),
    Combination(
        ("training.objective", "decoding.shortlist"),
        lambda c: c.training.objective != "translation" and c.decoding.shortlist > 0,
        "a shortlist has translations, for objective=translation only; set shortlist=0",
    ),
)
