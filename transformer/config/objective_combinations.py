"""Combinations of an objective with values that it does not allow."""

from collections.abc import Mapping
from typing import Any

from configs.rules import implementations
from transformer.config.combinations import Combination
from transformer.config_types import Config


def _objectives() -> Mapping[str, Any]:
    return implementations("transformer.training.objectives:OBJECTIVES")


def _objective(c: Config) -> Any:
    return _objectives()[c.training.objective]


def _lacks(c: Config, option: str) -> bool:
    return option not in _objective(c).options


def _is_wrong_strategy(c: Config) -> bool:
    reserved = {objective.strategy for objective in _objectives().values()} - {None}
    needed = _objective(c).strategy
    return c.decoding.strategy in reserved if needed is None else c.decoding.strategy != needed


def _longest_stack(c: Config) -> int:
    longest = max(c.data.max_length, c.decoding.max_source_length)
    return max(_objective(c).stack_lengths(c.model, longest, longest))


COMBINATIONS = (
    Combination(
        ("training.objective", "data.source_language"),
        lambda c: bool(c.data.source_language) != _objective(c).sides[0],
        "an objective that reads no source needs an empty source_language, the others a language",
    ),
    Combination(
        ("training.objective", "data.target_language"),
        lambda c: bool(c.data.target_language) != _objective(c).sides[1],
        "an objective that reads no target needs an empty target_language, the others a language",
    ),
    Combination(
        ("training.objective", "tokenizer.shared"),
        lambda c: not _objective(c).translates and not c.tokenizer.shared,
        "monolingual text has one vocabulary; set shared=true",
    ),
    Combination(
        ("training.objective", "training.eval_bleu"),
        lambda c: not _objective(c).translates and c.training.eval_bleu,
        "only translations have BLEU; set eval_bleu=false and checkpoint.best_metric=loss",
    ),
    Combination(
        ("training.objective", "decoding.strategy"),
        _is_wrong_strategy,
        "an objective and a strategy of the same name need each other; set both or neither",
    ),
    Combination(
        ("training.objective", "model.positions", "model.ctc_frames", "model.max_positions", "data.max_length"),
        lambda c: c.model.positions == "learned" and _longest_stack(c) > c.model.max_positions,
        "learned positions must cover ctc_frames for each token of max_length and decoding.max_source_length; "
        "raise max_positions or lower the others",
    ),
    Combination(
        ("training.objective", "model.source_vectors", "model.target_vectors"),
        lambda c: _lacks(c, "word_vectors") and bool(c.model.source_vectors or c.model.target_vectors),
        "only translation models read word vectors; leave source_vectors and target_vectors empty",
    ),
    Combination(
        ("training.objective", "batch.plan"),
        lambda c: _lacks(c, "packed") and c.batch.plan == "packed",
        "this objective reads one sentence a row; set plan=buckets",
    ),
    Combination(
        ("training.objective", "training.label_smoothing"),
        lambda c: _lacks(c, "label_smoothing") and c.training.label_smoothing > 0,
        "this objective has no label smoothing; set label_smoothing=0",
    ),
    Combination(
        ("training.objective", "training.r_drop"),
        lambda c: _lacks(c, "r_drop") and c.training.r_drop > 0,
        "R-Drop compares the distributions of two passes at the same target token; set r_drop=0",
    ),
    Combination(
        ("training.objective", "decoding.shortlist"),
        lambda c: _lacks(c, "shortlist") and c.decoding.shortlist > 0,
        "a shortlist has translations, for models that translate token by token; set shortlist=0",
    ),
)
