"""Reads charts: their data, and the text and the shapes of the pictures."""

import io
from typing import Any
from xml.etree import ElementTree

import numpy as np
import vl_convert


def data(chart: Any) -> list[dict]:
    """Returns the records of a chart's data, those of all its layers and panels."""
    return [record for values in chart.to_dict()["datasets"].values() for record in values]


def matrices(chart: Any, shape: tuple[int, int], *names: str) -> dict[Any, np.ndarray]:
    """Returns the matrices of a chart with heat maps by the values of these fields, or of the only
    one.
    """
    found: dict[Any, np.ndarray] = {}
    for record in data(chart):
        key = tuple(record[name] for name in names)
        matrix = found.setdefault(key[0] if len(key) == 1 else key, np.full(shape, np.nan))
        matrix[record["row"], record["column"]] = record["value"]
    return found


def svg(chart: Any) -> ElementTree.Element:
    """Returns the picture. Raises ParseError unless it is valid XML."""
    text = io.StringIO()
    chart.save(text, format="svg")
    return ElementTree.fromstring(text.getvalue())


def texts(picture: ElementTree.Element) -> list[str]:
    return [
        "".join(element.itertext()) for element in picture.iter() if element.tag.endswith("}text")
    ]


def marks(chart: Any) -> list[dict]:
    """Returns the marks that Vega draws, with their items."""
    found, nodes = [], [vl_convert.vegalite_to_scenegraph(chart.to_dict())["scenegraph"]]
    while nodes:
        node = nodes.pop()
        found += [node] if "marktype" in node else []
        nodes += node.get("items", [])
    return found
