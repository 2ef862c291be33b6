"""A picture of attention weights for TensorBoard: a map for each head, in a row for each layer."""

import io

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

CELL, GAP = 6, 6  # pixels of a weight, and between two maps
FRAME = 160  # grey


def attention_image(weights: Float[np.ndarray, "N H Q K"]) -> UInt8[np.ndarray, "height width"]:
    """Returns grey values: white for a weight of 0, black for 1."""
    layers, heads, queries, keys = weights.shape
    grey = np.rint(255 * (1 - weights)).astype(np.uint8).repeat(CELL, axis=2).repeat(CELL, axis=3)
    height, width = queries * CELL + GAP, keys * CELL + GAP
    framed = np.full((layers, heads, height, width), FRAME, np.uint8)
    framed[:, :, GAP // 2 : -GAP // 2, GAP // 2 : -GAP // 2] = grey
    return framed.transpose(0, 2, 1, 3).reshape(layers * height, heads * width)


def as_png(grey: UInt8[np.ndarray, "height width"]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(grey).save(file, format="PNG", optimize=True)
    return file.getvalue()
