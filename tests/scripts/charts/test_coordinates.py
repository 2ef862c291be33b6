"""The figure of the coordinate check; tests/training/test_parameterization.py has the check."""

import numpy as np

from scripts.charts import coordinates
from tests.scripts.charts.drawn import data, svg, texts


def test_sizes_are_relative_to_the_smallest_width(monkeypatch):
    def measure(config):
        size = config.model.d_model if config.model.parameterization == "standard" else 5.0
        return {"encoder.__call__": np.full(coordinates.UPDATES + 1, size)}

    monkeypatch.setattr(coordinates, "measure", measure)
    chart = coordinates.draw()
    ratios = sorted(record["ratio"] for record in data(chart) if record["updates"] == 4)
    assert ratios == [1, 1, 1, 1, 1, 2, 4, 8]
    assert {"standard", "mup", "d_model", "256"} <= set(texts(svg(chart)))
