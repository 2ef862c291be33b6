"""The variables of CTranslate2's model.bin, its settings, and the names of our parameters for the variables.

CTranslate2 stores the transpose of a kernel, and one matrix for the projections of one input.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_collections
import numpy as np

from scripts.interop import untrusted
from transformer.config.keys import show
from transformer.errors import UserError
from transformer.model.positions import POSITIONS

VERSIONS = range(2, 7)  # of the binary layout
DTYPES = dict(enumerate(map(np.dtype, ("float32", "int8", "int16", "int32", "float16", jnp.bfloat16))))
DTYPE_OF_SIZE = {4: DTYPES[0], 2: DTYPES[2], 1: DTYPES[1]}  # before version 4
SIDES = {"encoder": "source", "decoder": "target"}
STACKS = tuple(SIDES)
NUM_HEADS = {"TransformerSpec": 8, "TransformerBase": 8, "TransformerBig": 16}  # unless a variable says it
ACTIVATIONS = {"relu": (0, False), "gelu": (1, False), "swish": (2, False), "gelu_exact": (3, False)}
ACTIVATIONS |= {"geglu": (1, True), "swiglu": (2, True), "glu": (6, True)}  # the number, and whether it is gated
SINUSOIDS = ("sinusoidal", "sinusoidal_concatenated", "sinusoidal_marian")

DEFAULTS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>"}
DEFAULTS |= {"add_source_eos": False, "layer_norm_epsilon": None}  # of config.json

PARTS = {
    "self_attention/linear_0": ("self_attention.query", "self_attention.key", "self_attention.value"),
    "self_attention/linear_1": ("self_attention.output",),
    "self_attention/layer_norm": ("self_attention_connection.norm",),
    "attention/linear_0": ("cross_attention.query",),
    "attention/linear_1": ("cross_attention.key", "cross_attention.value"),
    "attention/linear_2": ("cross_attention.output",),
    "attention/layer_norm": ("cross_attention_connection.norm",),
    "ffn/linear_0": ("feed_forward.inner",),
    "ffn/linear_0_noact": ("feed_forward.gate",),
    "ffn/linear_1": ("feed_forward.outer",),
    "ffn/layer_norm": ("feed_forward_connection.norm",),
}
KINDS = {"weight": "kernel", "bias": "bias"}, {"gamma": "scale", "beta": "bias"}  # of linear maps, and of norms


def names(layers: dict[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Yields the names of a variable and of the parameters that it contains, for all layers and norms."""
    for stack in STACKS:
        parts = {f"{stack}/layer_norm": [f"{stack}.final_norm"]}
        for layer in range(layers[stack]):
            for theirs, ours in PARTS.items():
                parts[f"{stack}/layer_{layer}/{theirs}"] = [f"{stack}.layers.{layer}.{name}" for name in ours]
        for theirs, ours in parts.items():
            for their_kind, our_kind in KINDS[theirs.endswith("norm")].items():
                yield f"{theirs}/{their_kind}", [f"{name}.{our_kind}" for name in ours]


def read_variables(path: Path) -> tuple[dict[str, np.ndarray], int]:
    """Returns the variables of a model.bin, dequantized, and the number of heads if no variable says it."""
    file = untrusted.Cursor(path)
    with untrusted.reading(path):
        if (version := file.unsigned(4)) not in VERSIONS:
            raise UserError(f"has binary version {version}, must be {VERSIONS[0]} to {VERSIONS[-1]}")

        def name() -> str:
            return bytes(file.take(file.unsigned(2))).decode().removesuffix("\0")

        specification, revision, variables = name(), file.unsigned(4), {}
        if specification not in NUM_HEADS or revision < 2:
            raise UserError(f"is a {specification} of revision {revision}, must be an encoder-decoder TransformerSpec")
        for _ in range(file.unsigned(4)):
            variable, shape = name(), [file.unsigned(4) for _ in range(file.unsigned(1))]
            kind, size = file.unsigned(1), file.unsigned(4)
            dtype = DTYPES[kind] if version >= 4 else DTYPE_OF_SIZE[kind]
            array = variables[variable] = file.array(dtype, shape)
            if size != (array.nbytes if version >= 4 else array.size):
                raise ValueError(f"{variable} of shape {shape} has size {size}")
        for scale in [key for key in variables if key.endswith("weight_scale")]:
            with np.errstate(divide="ignore", invalid="ignore"):
                divisor = variables.pop(scale).astype(np.float32).reshape(-1, 1)
                variables[scale[: -len("_scale")]] = variables[scale[: -len("_scale")]].astype(np.float32) / divisor
        aliases = [(name(), name()) for _ in range(file.unsigned(4) if version >= 3 else 0)]
        variables |= {alias: variables[original] for alias, original in aliases if original in variables}
        untrusted.check_finite(path, variables)
    # Before revision 5, the settings of both stacks have no stack in their names.
    for setting in [key for key in variables if "/" not in key and not key.startswith("with_")]:
        value = variables.pop(setting)
        variables |= {f"{stack}/{setting}": value for stack in STACKS}
    return variables, NUM_HEADS[specification]


def read_settings(folder: Path, variables: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the content of config.json; before binary version 6, variables say the same, and are taken."""
    settings = dict(DEFAULTS)
    for token in ("bos", "eos"):
        settings[f"add_source_{token}"] = bool(variables.pop(f"with_source_{token}", False))
    if not variables.pop("with_target_bos", True):
        settings["decoder_start_token"] = "</s>"
    if (folder / "config.json").exists():
        settings |= untrusted.read_json(folder / "config.json")
    for key, value in settings.items():
        if key not in DEFAULTS and value:
            raise UserError(f"has the setting {key}={show(value)}, which no model here has")
    if settings["decoder_start_token"] is None:
        raise UserError("has no decoder_start_token: the user gives the first target token, which no command here can")
    return settings


def sinusoids(name: str, d_model: int, positions: np.ndarray) -> np.ndarray:
    """Returns the encodings of these positions, one a row."""
    module = POSITIONS[name](ml_collections.ConfigDict({"d_model": d_model}), None)
    return np.asarray(module(jnp.asarray(positions)[None])[0])


def is_sinusoidal(table: np.ndarray, name: str) -> bool:
    """Tells whether a table of positions has these encodings, up to the rounding of bfloat16."""
    encodings = sinusoids(name, table.shape[1], np.arange(len(table)))
    return encodings.shape == table.shape and np.abs(table - encodings).max() < 5e-3
