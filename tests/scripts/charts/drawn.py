"""Reads charts: their data, and the text and the shapes of the pictures."""

import io
from typing import Any
from xml.etree import ElementTree

import numpy as np


def data(chart: Any) -> list[dict]:
    """Returns the records of a chart's data, those of all its layers and panels."""
    return [record for values in chart.to_dict()["datasets"].values() for record in values]


def matrices(chart: Any, shape: tuple[int, int], *names: str) -> dict[Any, np.ndarray]:
    """Returns the matrices of a chart with heat maps by the values of these fields, or of the only one."""
    by_fields = {tuple(record[name] for name in names): np.reshape(record["value"], shape) for record in data(chart)}
    return {key[0] if len(key) == 1 else key: matrix for key, matrix in by_fields.items()}


def svg(chart: Any) -> ElementTree.Element:
    """Returns the picture. Raises ParseError unless it is valid XML."""
    text = io.StringIO()
    chart.save(text, format="svg")
    return ElementTree.fromstring(text.getvalue())


def texts(picture: ElementTree.Element) -> list[str]:
    return ["".join(element.itertext()) for element in picture.iter() if element.tag.endswith("}text")]
