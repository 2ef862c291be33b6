"""Explanations of one sentence: the model's attention, the scores of translations, the beam search.

Each function returns the answer to a request with these fields. Pieces are strings of tokens, as in
the Python interface: U+2581 begins a word, "</s>" is end-of-sentence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scripts.charts import beam as beam_chart
from scripts.serving.requests import Fields, Limits, read_texts
from transformer.api import Model
from transformer.config.types import guided_heads
from transformer.decoding.translation import Translation
from transformer.support.errors import UserError

Answer = dict[str, Any]


def attention(model: Model, fields: Fields, limits: Limits) -> Answer:
    """Explains `translation` by cross-attention.

    The weights (T, S) are the mean of the guided heads or, without any, of the last layer's heads.
    """
    # The model reads this translation, whether or not a search would find it.
    source = _sentence(fields, "q", limits)
    target = _sentence(fields, "translation", limits)
    forced = model.attention(source, target)
    guided = [forced.cross[head] for head in guided_heads(model.config.training)]
    weights = np.mean(guided or forced.cross[-1], axis=0)
    return {
        "source": forced.source_pieces,
        "target": forced.target_output_pieces,
        "weights": weights.astype(float).round(4).tolist(),
    }


def score(model: Model, fields: Fields, limits: Limits) -> Answer:
    """Scores each text of the list `translations`, in total and by tokens."""
    source = _sentence(fields, "q", limits)
    targets, _ = read_texts(fields, "translations", limits)
    return {"scores": _as_json(model.score([(source, target) for target in targets]))}


def alternatives(model: Model, fields: Fields, limits: Limits) -> Answer:
    """Completes `prefix` with each of the likeliest next tokens.

    Their number is twice the beam size.
    """
    source = _whole(model, fields, limits)
    prefix = _sentence({"prefix": "", **fields}, "prefix", limits)
    count = 2 * model.config.decoding.beam_size
    return {"alternatives": _as_json(model.alternatives(source, prefix, count))}


def beam(model: Model, fields: Fields, limits: Limits) -> Answer:
    """Returns the hypotheses of the beam search as a Vega-Lite chart, as in the report."""
    beam_tree = model.beam_tree(_whole(model, fields, limits))
    return beam_chart.tree(beam_tree).to_dict()


FUNCTIONS = (attention, score, alternatives, beam)


def _as_json(translations: Sequence[Translation]) -> list[Answer]:
    names = ("text", "score", "log_probability", "pieces", "token_log_probabilities")
    return [{name: getattr(translation, name) for name in names} for translation in translations]


def _whole(model: Model, fields: Fields, limits: Limits) -> str:
    """Returns the field `q`. Raises UserError if a search would cut it."""
    source = _sentence(fields, "q", limits)
    # A search would cut a longer source, so its explanation would be of another text.
    tokens = model.num_tokens(source)
    longest = model.config.decoding.max_source_length
    if tokens > longest:
        raise UserError(
            f"q has {tokens} tokens including end-of-sentence, must have at most {longest}"
        )
    return source


def _sentence(fields: Fields, name: str, limits: Limits) -> str:
    (text, *_), is_list = read_texts(fields, name, limits)
    if is_list:
        raise UserError(f"Invalid request: {name} must be one text")
    return text
