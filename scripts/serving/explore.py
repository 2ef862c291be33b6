"""Explanations of one sentence: the model's attention, the scores of translations, the beam search.

Each function returns the answer to a request with these fields. Pieces are those of the Python
interface: U+2581 begins a word, "</s>" is end-of-sentence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException

from scripts.charts import beam as beam_chart
from scripts.serving.requests import Fields, Limits, read_texts
from transformer.api import Model
from transformer.config.types import guided_heads
from transformer.decoding.translation import Translation


def attention(model: Model, fields: Fields, limits: Limits) -> dict[str, Any]:
    """Explains `translation` by cross-attention: weights (T, S), the mean of guided heads, or of
    the last layer.
    """
    source = _sentence(fields, "q", limits)
    target = _sentence(fields, "translation", limits)
    read = model.attention(source, target)
    heads = guided_heads(model.config.training)
    weights = np.mean([read.cross[head] for head in heads] if heads else read.cross[-1], axis=0)
    weights = weights.astype(float).round(4).tolist()
    return {"source": read.source_pieces, "target": read.target_output_pieces, "weights": weights}


def score(model: Model, fields: Fields, limits: Limits) -> dict[str, Any]:
    """Scores each of `translations`, a list of texts, in total and by tokens."""
    source, (targets, _) = (
        _sentence(fields, "q", limits),
        read_texts(fields, "translations", limits),
    )
    return {"scores": _as_json(model.score([(source, target) for target in targets]))}


def alternatives(model: Model, fields: Fields, limits: Limits) -> dict[str, Any]:
    """Completes `prefix` with each of the likeliest next tokens, twice as many as the beam has
    hypotheses.
    """
    source = _whole(model, fields, limits)
    prefix = _sentence({"prefix": "", **fields}, "prefix", limits)
    count = 2 * model.config.decoding.beam_size
    return {"alternatives": _as_json(model.alternatives(source, prefix, count))}


def beam(model: Model, fields: Fields, limits: Limits) -> dict[str, Any]:
    """Shows the hypotheses of the beam search: a chart of Vega-Lite, as the report has it."""
    return beam_chart.tree(model.beam_tree(_whole(model, fields, limits))).to_dict()


FUNCTIONS = (attention, score, alternatives, beam)


def _as_json(translations: Sequence[Translation]) -> list[dict[str, Any]]:
    names = ("text", "score", "log_probability", "pieces", "token_log_probabilities")
    return [{name: getattr(translation, name) for name in names} for translation in translations]


def _whole(model: Model, fields: Fields, limits: Limits) -> str:
    """Returns the field `q`. Raises HTTPException if a search would cut it."""
    source = _sentence(fields, "q", limits)
    longest = model.config.decoding.max_source_length
    if (tokens := model.num_tokens(source)) > longest:
        raise HTTPException(
            400, f"q has {tokens} tokens including end-of-sentence, must have at most {longest}"
        )
    return source


def _sentence(fields: Fields, name: str, limits: Limits) -> str:
    (text, *_), is_list = read_texts(fields, name, limits)
    if is_list:
        raise HTTPException(400, f"Invalid request: {name} must be one text")
    return text
