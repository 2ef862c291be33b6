"""The attention of translation models in some sentences."""

import base64
from typing import Any

import numpy as np
from jaxtyping import Float

from scripts.charts import theme
from scripts.charts.attention import axes
from scripts.reporting.inspection import Inspection
from scripts.reporting.section import Section
from transformer.decoding.activations import Attention

TITLES = {"cross": "cross-attention", "encoder": "encoder", "decoder": "decoder"}


def section(inspection: Inspection) -> Section:
    content = {"parts": TITLES, "shown": inspection.shown} if inspection.shown else None
    data = [
        {"source": each.source, "translation": each.translation, "parts": _as_data(each.attention)}
        for each in inspection.shown
    ]
    return Section("attention", "Attention", content, inspection.notes, data={"attention": data})


def _as_data(attention: Attention) -> dict[str, dict[str, Any]]:
    """Returns the weights of each part in steps of 1/255, with the tokens and titles of rows and columns."""
    parts = {}
    for name in TITLES:
        weights, (queries, keys) = getattr(attention, name), axes(attention, name)
        parts[name] = {
            "shape": list(weights.shape),
            "queries": list(map(theme.visible, queries.labels)),
            "keys": list(map(theme.visible, keys.labels)),
            "titles": [queries.title, keys.title],
            "weights": base64.b64encode(np.rint(255 * weights).astype(np.uint8).tobytes()).decode(),
            "entropy": np.round(entropy(weights), 3).tolist(),
        }
    return parts


def entropy(weights: Float[np.ndarray, "N H Q K"]) -> Float[np.ndarray, "N H"]:
    """Returns the entropy of each head in bits, the mean over its queries. 0: every query reads a single token."""
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(-1).mean(-1)
