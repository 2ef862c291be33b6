"""Export of a model to CTranslate2's format, and the names of its variables.

The toolkit's own converter writes the files. CTranslate2 stores the transpose of a kernel.
Projections of the same input, such as query, key and value, are one matrix.
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
# CTranslate2's number of the activation, and True if it is gated.
ACTIVATIONS = {
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
MAX_POSITIONS = 2048  # the number of sinusoids in the file
# The keys of config.json with their defaults. The tokens are pieces of the vocabularies here.
SETTINGS = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "decoder_start_token": "<s>",
    "add_source_eos": False,
    "layer_norm_epsilon": 1e-5,
}
# The modules here that each module there contains, within a layer.
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
LINEAR = {"weight": "kernel", "bias": "bias"}
NORM = {"gamma": "scale", "beta": "bias"}


def variable_names(layers: dict[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Yields the name of each variable in a layer or norm, and the parameters that it contains."""
    for stack in STACKS:
        parts = {f"{stack}/layer_norm": [f"{stack}.final_norm"]}
        for layer in range(layers[stack]):
            for theirs, ours in PARTS.items():
                modules = [f"{stack}.layers.{layer}.{name}" for name in ours]
                parts[f"{stack}/layer_{layer}/{theirs}"] = modules
        for theirs, modules in parts.items():
            kinds = NORM if theirs.endswith("norm") else LINEAR
            for their_kind, our_kind in kinds.items():
                yield f"{theirs}/{their_kind}", [f"{module}.{our_kind}" for module in modules]


def write(
    model: PortableModel,
    folder: Path,
    quantization: str | None,
    python: Path | None = None,
    *_: object,
) -> None:
    """Writes the model, its SentencePiece models, and vmap.txt if it has a shortlist.

    `python` has CTranslate2's converter; None means .venv-interop. Raises UserError if CTranslate2
    cannot express a setting, or the converter is missing.
    """
    model_config = freeze(model.settings).model
    d_k, d_v = head_widths(model_config)
    # A head of CTranslate2 has one width for keys and values.
    allowed_d_v = model_config.d_v if d_v == d_k else d_k
    model.check_expressible("ctranslate2", EXPRESSIBLE | {"model.d_v": (allowed_d_v,)})

    # The arguments of CTranslate2's specification of a stack.
    num_heads = model_config.num_heads
    layers = {
        "encoder": model_config.num_layers,
        "decoder": model_config.num_decoder_layers or model_config.num_layers,
    }
    activation, is_gated = ACTIVATIONS[model_config.activation]
    arguments = {
        "num_heads": num_heads,
        "activation": activation,
        "ffn_glu": is_gated,
        "no_final_norm": "decoder.final_norm.scale" not in model.parameters,
        "head_dim": None if d_k * num_heads == model_config.d_model else d_k,
        "rotary_dim": 0 if model_config.positions == "rotary" else None,
        "rotary_interleave": False,
    }
    settings = {
        "add_source_eos": model_config.source_eos,
        "layer_norm_epsilon": model_config.layer_norm_epsilon,
    }
    # The converter runs in the Python of the toolkit, reads the variables and writes model.bin.
    variables = folder / "variables.npz"
    np.savez(variables, **_variables(model.parameters, model_config, layers))
    request = {
        "folder": str(folder.resolve()),
        "quantization": quantization,
        **{stack: arguments | {"num_layers": layers[stack]} for stack in STACKS},
        "config": SETTINGS | settings,
        "vocabularies": [list(side.pieces) for side in model.tokenizer.sides],
        "sources": [],
    }
    # This Python may have CTranslate2 too. If not, its error names the missing module.
    try:
        python = python or runtimes.find_python(None, is_here=False)
        if not python.exists():
            python = Path(sys.executable)
        runtimes.ask(python, "ctranslate2", request)
    except runtimes.Unavailable as reason:
        raise UserError(
            f"--format=ctranslate2: needs CTranslate2's converter: {reason}"
        ) from reason
    variables.unlink()
    vocabularies.write_segmenters(folder, model.tokenizer)
    if model.shortlist is not None:
        files.write_text(folder / "vmap.txt", vocabulary_map(model))


def _variables(parameters: Arrays, model_config: Config, layers: dict[str, int]) -> Arrays:
    variables = {
        theirs: np.concatenate([parameters[name].T for name in ours])
        for theirs, ours in variable_names(layers)
        if ours[0] in parameters
    }
    # Tied tables are written as copies, and the converter finds that they are equal.
    table = parameters["decoder.embedding.table"]
    variables["encoder/embeddings_0/weight"] = parameters.get("encoder.embedding.table", table)
    variables["decoder/embeddings/weight"] = table
    variables["decoder/projection/weight"] = parameters.get("projection.kernel", table.T).T
    if model_config.output_bias:
        variables["decoder/projection/bias"] = parameters["output_bias"]
    starts_from_zero = model_config.decoder_start == "zero"
    variables["decoder/start_from_zero_embedding"] = np.int8(starts_from_zero)
    kind = model_config.positions
    for stack in STACKS:
        # The specifications have a final norm only with pre-norm.
        variables[f"{stack}/pre_norm"] = np.int8(model_config.norm_position == "pre")
        encodings = f"{stack}/position_encodings/encodings"
        if kind in SINUSOIDS:
            positions = np.arange(MAX_POSITIONS)
            variables[encodings] = sinusoids(kind, model_config.d_model, positions)
        elif kind == "learned":
            variables[encodings] = parameters[f"{stack}.positions.table"]
    return variables


def vocabulary_map(model: PortableModel) -> str:
    """Returns the content of vmap.txt.

    A line has a source token, a tab and its candidates. The line without a source token has the
    candidates for all sources.
    """
    source, target = (side.pieces for side in model.tokenizer.sides)
    lines = ["\t" + " ".join(target[token] for token in model.shortlist.frequent)]
    for token, translations in enumerate(model.shortlist.translations):
        candidates = [target[translation] for translation in translations if translation >= 0]
        # With a shared vocabulary, the search may copy source tokens.
        if model.shortlist.is_shared:
            candidates.append(source[token])
        if token >= SPECIAL and candidates:
            lines.append(f"{source[token]}\t{' '.join(candidates)}")
    return "".join(f"{line}\n" for line in lines)
