"""Export of a model to CTranslate2's format, which the toolkit's own converter writes, and the
names of its variables.

CTranslate2 stores the transpose of a kernel, and one matrix for the projections of one input.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scripts.interop import runtimes, vocabularies
from scripts.interop.portable import COMMON, Arrays, PortableModel, sinusoids
from transformer.config.keys import freeze
from transformer.config.types import Config, head_widths
from transformer.support import files
from transformer.support.errors import UserError
from transformer.support.special_tokens import SPECIAL

STACKS = ("encoder", "decoder")
ACTIVATIONS = {  # the number, and whether it is gated
    "relu": (0, False),
    "gelu": (1, False),
    "swish": (2, False),
    "gelu_exact": (3, False),
    "geglu": (1, True),
    "swiglu": (2, True),
    "glu": (6, True),
}
SINUSOIDS = ("sinusoidal", "sinusoidal_concatenated", "sinusoidal_marian")
EXPRESSIBLE = COMMON | {"model.activation": tuple(ACTIVATIONS), "model.source_eos": (True, False)}
QUANTIZATIONS = ("int8", "int8_float32", "bfloat16", "float16")
MAX_POSITIONS = 2048  # of sinusoids, which are stored
# The keys of config.json with their defaults. The pieces are those of our vocabularies.
SETTINGS = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "decoder_start_token": "<s>",
    "add_source_eos": False,
    "layer_norm_epsilon": 1e-5,
}

PARTS = {
    "self_attention/linear_0": (
        "self_attention.query",
        "self_attention.key",
        "self_attention.value",
    ),
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
# of linear maps, and of norms
KINDS = {"weight": "kernel", "bias": "bias"}, {"gamma": "scale", "beta": "bias"}


def names(layers: dict[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Yields the names of a variable and of the parameters that it contains, for all layers and
    norms.
    """
    for stack in STACKS:
        parts = {f"{stack}/layer_norm": [f"{stack}.final_norm"]}
        for layer in range(layers[stack]):
            for theirs, ours in PARTS.items():
                parts[f"{stack}/layer_{layer}/{theirs}"] = [
                    f"{stack}.layers.{layer}.{name}" for name in ours
                ]
        for theirs, ours in parts.items():
            for their_kind, our_kind in KINDS[theirs.endswith("norm")].items():
                yield f"{theirs}/{their_kind}", [f"{name}.{our_kind}" for name in ours]


def write(
    model: PortableModel, folder: Path, quantization: str | None, python: Path | None = None
) -> None:
    """Writes the model, its SentencePiece models, and vmap.txt if it has a shortlist.

    `python` has CTranslate2's converter; None: .venv-interop has it. Raises UserError if
    CTranslate2 cannot express a setting, or the converter is missing.
    """
    config = freeze(model.settings)
    d_k, d_v = head_widths(config.model)
    model.check_expressible(
        "ctranslate2", EXPRESSIBLE | {"model.d_v": (config.model.d_v if d_v == d_k else d_k,)}
    )
    layers = {
        "encoder": config.model.num_layers,
        "decoder": config.model.num_decoder_layers or config.model.num_layers,
    }
    activation, is_gated = ACTIVATIONS[config.model.activation]
    arguments = {
        "num_heads": config.model.num_heads,
        "activation": activation,
        "ffn_glu": is_gated,
        "no_final_norm": "decoder.final_norm.scale" not in model.parameters,
        "head_dim": None if d_k * config.model.num_heads == config.model.d_model else d_k,
        "rotary_dim": 0 if config.model.positions == "rotary" else None,
        "rotary_interleave": False,
    }
    settings = {
        "add_source_eos": config.model.source_eos,
        "layer_norm_epsilon": config.model.layer_norm_epsilon,
    }
    variables = folder / "variables.npz"
    np.savez(variables, **_variables(model.parameters, config.model, layers))
    request = {
        "folder": str(folder.resolve()),
        "quantization": quantization,
        **{stack: arguments | {"num_layers": number} for stack, number in layers.items()},
        "config": SETTINGS | settings,
        "vocabularies": [list(side.pieces) for side in model.tokenizer.sides],
        "sources": [],
    }
    try:
        python = python or runtimes.find_python(None, is_here=False)
        runtimes.ask(python if python.exists() else Path(sys.executable), "ctranslate2", request)
    except runtimes.Unavailable as reason:
        raise UserError(
            f"--format=ctranslate2: needs CTranslate2's converter: {reason}"
        ) from reason
    variables.unlink()
    vocabularies.write_segmenters(folder, model.tokenizer)
    if model.shortlist is not None:
        files.write_text(folder / "vmap.txt", vocabulary_map(model))


def _variables(parameters: Arrays, config: Config, layers: dict[str, int]) -> Arrays:
    variables = {
        theirs: np.concatenate([parameters[name].T for name in ours])
        for theirs, ours in names(layers)
        if ours[0] in parameters
    }
    table = parameters["decoder.embedding.table"]
    variables["encoder/embeddings_0/weight"] = parameters.get("encoder.embedding.table", table)
    variables["decoder/embeddings/weight"] = table
    variables["decoder/projection/weight"] = parameters.get("projection.kernel", table.T).T
    if config.output_bias:
        variables["decoder/projection/bias"] = parameters["output_bias"]
    variables["decoder/start_from_zero_embedding"] = np.int8(config.decoder_start == "zero")
    for stack in STACKS:
        # The specifications have a final norm only with pre-norm.
        variables[f"{stack}/pre_norm"] = np.int8(config.norm_position == "pre")
        if config.positions in SINUSOIDS:
            encodings = sinusoids(config.positions, config.d_model, np.arange(MAX_POSITIONS))
            variables[f"{stack}/position_encodings/encodings"] = encodings
        elif config.positions == "learned":
            variables[f"{stack}/position_encodings/encodings"] = parameters[
                f"{stack}.positions.table"
            ]
    return variables


def vocabulary_map(model: PortableModel) -> str:
    """Returns the lines of vmap.txt: a source token, a tab and its candidates; without a token
    those of all sources.
    """
    source, target = (side.pieces for side in model.tokenizer.sides)
    lines = ["\t" + " ".join(target[token] for token in model.shortlist.frequent)]
    for token, translations in enumerate(model.shortlist.translations):
        candidates = [target[translation] for translation in translations if translation >= 0]
        candidates += [source[token]] if model.shortlist.is_shared else []
        if token >= SPECIAL and candidates:
            lines.append(f"{source[token]}\t{' '.join(candidates)}")
    return "".join(f"{line}\n" for line in lines)
