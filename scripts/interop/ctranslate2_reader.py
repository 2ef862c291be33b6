"""Import of CTranslate2's model folders and of Argos packages."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from scripts.interop import untrusted, vocabularies
from scripts.interop.ctranslate2 import ACTIVATIONS, SETTINGS, SINUSOIDS, STACKS, variable_names
from scripts.interop.portable import (
    ABSENT,
    NEVER,
    Arrays,
    PortableModel,
    Settings,
    fitting_positions,
    rows_in_order,
    sinusoids,
)
from transformer.config.keys import format_value
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS

DTYPES = {0: "float32", 1: "int8", 2: "int16", 3: "int32", 4: "float16", 5: jnp.bfloat16}
DTYPE_OF_SIZE = {4: "float32", 2: "int16", 1: "int8"}  # before version 4
# The number of heads by specification, unless a variable has it.
NUM_HEADS = {"TransformerSpec": 8, "TransformerBase": 8, "TransformerBig": 16}
WITHOUT_EFFECT = {
    "alignment_layer",
    "alignment_heads",
    "embeddings_merge",
    "alibi_use_positive_positions",
}


def recognises(path: Path) -> bool:
    return any(list(folder.glob("*_vocabulary.*")) for folder in _model_folders(path))


def read(path: Path) -> PortableModel:
    """Reads a model folder, or an Argos package: a model folder and a SentencePiece model."""
    with untrusted.reading(path):
        folder = _model_folders(path)[0]
        variables = _read_variables(folder / "model.bin")
        settings = _read_settings(folder, variables)
        config = {
            "decoding.length_penalty": 1.0,
            "decoding.length_penalty_form": "power",
            "decoding.stopping": "ended",
            "model.layer_norm_epsilon": settings["layer_norm_epsilon"],
        }

        # Each function takes the variables of one part of the model out of `variables`.
        parameters = _read_layers(variables, config)
        _read_head_widths(variables, config)
        tokenizer = _read_embeddings(variables, config, parameters, settings, (folder, path))
        _read_positions(variables, config, parameters)
        for name, value in variables.items():
            is_off = value.ndim == 0 and value == 0
            if name.rpartition("/")[2] not in WITHOUT_EFFECT and not is_off:
                raise UserError(f"has the variable {name}, for which the models here have no part")
        if (path / "metadata.json").exists():
            metadata = untrusted.read_json(path / "metadata.json")
            prefix = metadata.get("target_prefix")
            if prefix:
                raise UserError(
                    f"metadata.json has target_prefix={prefix!r:.60}, with which no model here can "
                    "begin"
                )
            codes = {"source_language": "from_code", "target_language": "to_code"}
            for key, name in codes.items():
                if isinstance(metadata[name], str):
                    config[f"data.{key}"] = metadata[name]
    return PortableModel(config, parameters, tokenizer)


def _model_folders(path: Path) -> list[Path]:
    return [folder for folder in (path, path / "model") if (folder / "model.bin").is_file()]


def _take_scalar(
    variables: Arrays, name: str, default: float, scopes: Iterable[str] = STACKS
) -> float:
    """Takes a scalar, which must have one value in all scopes."""
    values = {variables.pop(f"{scope}/{name}", np.array(default)).item() for scope in scopes}
    if len(values) > 1:
        raise UserError(f"{name} has the values {sorted(values)}, must have one")
    return values.pop()


def _read_layers(variables: Arrays, config: Settings) -> Arrays:
    """Returns the parameters of layers and norms, and adds their settings to `config`."""
    layers = dict.fromkeys(STACKS, 0)
    for stack in STACKS:
        while f"{stack}/layer_{layers[stack]}/ffn/linear_1/weight" in variables:
            layers[stack] += 1
    parameters = {}
    for theirs, ours in variable_names(layers):
        if theirs in variables:
            parts = np.split(variables.pop(theirs), len(ours))
            parameters |= {name: part.T for name, part in zip(ours, parts, strict=True)}

    # A linear map without a bias gets a bias of 0 where the model here must have one.
    has_attention_bias = any("attention." in name and name.endswith(".bias") for name in parameters)
    for name, kernel in list(parameters.items()):
        if name.endswith(".kernel") and (has_attention_bias or ".feed_forward." in name):
            bias = np.zeros(kernel.shape[1], np.float32)
            parameters.setdefault(name.replace(".kernel", ".bias"), bias)

    number = int(_take_scalar(variables, "activation", 0))
    is_gated = "encoder.layers.0.feed_forward.gate.kernel" in parameters
    activations = [name for name, value in ACTIVATIONS.items() if value == (number, is_gated)]
    if not activations:
        gates = " with gates" if is_gated else ""
        raise UserError(f"has activation {number}{gates}, which no model here has")
    config |= {
        "model.num_layers": layers["encoder"],
        "model.num_decoder_layers": layers["decoder"],
        "model.num_heads": int(_take_scalar(variables, "num_heads", 0)),
        "model.d_ff": parameters["encoder.layers.0.feed_forward.inner.kernel"].shape[1],
        "model.norm_position": "pre" if _take_scalar(variables, "pre_norm", 1) else "post",
        "model.final_norm": "encoder.final_norm.scale" in parameters,
        "model.attention_bias": has_attention_bias,
        "model.activation": activations[0],
    }
    return parameters


def _read_head_widths(variables: Arrays, config: Settings) -> None:
    """Adds d_k and rotary positions, which all attentions must share, to `config`."""
    encoder = [f"encoder/layer_{layer}" for layer in range(config["model.num_layers"])]
    decoder = [f"decoder/layer_{layer}" for layer in range(config["model.num_decoder_layers"])]
    self_attentions = [f"{layer}/self_attention" for layer in encoder + decoder]
    attentions = self_attentions + [f"{layer}/attention" for layer in decoder]
    width = int(_take_scalar(variables, "head_dim", 0, attentions))
    if width:
        config |= {"model.d_k": width, "model.d_v": width}
    if _take_scalar(variables, "rotary_dim", ABSENT, self_attentions) != ABSENT:
        is_interleaved = _take_scalar(variables, "rotary_interleave", 1, self_attentions)
        if is_interleaved or _take_scalar(variables, "rotary_base", 1e4, self_attentions) != 1e4:
            raise UserError(
                "has rotary_interleave or a rotary_base, must rotate halves with base 10000"
            )
        config["model.positions"] = "rotary"


def _read_embeddings(
    variables: Arrays,
    config: Settings,
    parameters: Arrays,
    settings: Settings,
    folders: Sequence[Path],
) -> Tokenizer:
    """Adds embeddings and logits to `parameters`, with rows in the order of the tokens here."""
    # With several source features, there is a table for each.
    is_indexed = "encoder/embeddings_0/weight" in variables
    source_prefix = "encoder/embeddings_0" if is_indexed else "encoder/embeddings"
    tables = []
    for stack, prefix in zip(STACKS, (source_prefix, "decoder/embeddings"), strict=True):
        table = variables.pop(f"{prefix}/weight")

        # The scale is a flag or a factor. The model here always multiplies by sqrt(d_model).
        scale = variables.pop(f"{stack}/scale_embeddings", np.int8(1))
        root = math.sqrt(table.shape[1])
        if scale.dtype == np.int8:
            scale = root if scale else 1.0
        factor = float(scale)
        if factor != root:
            table = table * np.float32(factor / root)
        tables.append(table)
    source_table, target_table = tables
    rows = len(source_table), len(target_table)
    source, target = vocabularies.read_ctranslate2(folders, settings, rows)
    projection = variables.pop("decoder/projection/weight")
    bias = variables.pop("decoder/projection/bias", None)

    # A decoder may start with EOS. BOS then has the row of EOS, but must not have its probability.
    starts_with_eos = target.ids[BOS] == target.ids[EOS]
    outputs = list(target.ids)
    if starts_with_eos:
        outputs[BOS] = ABSENT

    share = "none"
    if np.array_equal(projection, target_table):
        is_same = source.ids == target.ids and np.array_equal(source_table, target_table)
        share = "all" if is_same else "target"
    parameters["decoder.embedding.table"] = rows_in_order(target_table, target.ids)
    if share != "all":
        parameters["encoder.embedding.table"] = rows_in_order(source_table, source.ids)
    if share == "none":
        parameters["projection.kernel"] = rows_in_order(projection, outputs).T
    if bias is None and ABSENT in outputs:
        bias = np.zeros(len(projection), np.float32)
    if bias is not None:
        parameters["output_bias"] = rows_in_order(bias, outputs, NEVER)

    starts_from_zero = _take_scalar(variables, "start_from_zero_embedding", 0, STACKS[1:])
    config |= {
        "tokenizer.kind": "pieces",
        "model.d_model": target_table.shape[1],
        "model.share_embeddings": share,
        "model.output_bias": bias is not None,
        "model.decoder_start": "zero" if starts_from_zero else "bos",
        # Such decoders are from Marian or fairseq, and callers add EOS to sources.
        "model.source_eos": settings["add_source_eos"] or starts_with_eos,
    }
    return vocabularies.make_tokenizer(source, target)


def _read_positions(variables: Arrays, config: Settings, parameters: Arrays) -> None:
    tables = [variables.pop(f"{stack}/position_encodings/encodings", None) for stack in STACKS]
    if "model.positions" in config:
        return  # they are rotary
    if tables[0] is None:
        # CTranslate2 computes encodings, and its first position is 1.
        positions = np.arange(1, 1025)
        tables = [sinusoids("sinusoidal_marian", config["model.d_model"], positions)] * 2
    kind = fitting_positions(SINUSOIDS, tables)
    if kind is not None:
        config["model.positions"] = kind
        return
    longest = min(len(tables[0]) - 50, 256)
    config |= {
        "model.positions": "learned",
        "model.max_positions": len(tables[0]),
        "data.max_length": longest,
        "decoding.max_source_length": longest,
    }
    for stack, table in zip(STACKS, tables, strict=True):
        parameters[f"{stack}.positions.table"] = table


def _read_variables(path: Path) -> Arrays:
    """Returns the variables of a model.bin. Arrays are dequantized and float32, scalars are not.

    The names of all settings begin with the stack, or with_.
    """
    variables = {}
    with untrusted.reading(path):
        file = untrusted.Cursor(path)
        version = file.unsigned(4)
        if not 2 <= version <= 6:
            raise UserError(f"has binary version {version}, must be 2 to 6")
        specification = file.name(file.unsigned(2))
        _revision = file.unsigned(4)
        if specification not in NUM_HEADS:
            raise UserError(f"is a {specification}, must be an encoder-decoder TransformerSpec")
        for _ in range(file.unsigned(4)):
            name = file.name(file.unsigned(2))
            shape = [file.unsigned(4) for _ in range(file.unsigned(1))]
            kind = file.unsigned(1)
            _size = file.unsigned(4)
            if 0 in shape:
                raise UserError(f"{name} is empty, with the shape {tuple(shape)}")
            dtype = DTYPES[kind] if version >= 4 else DTYPE_OF_SIZE[kind]
            variables[name] = file.array(dtype, shape)

        quantized = [name for name in variables if f"{name}_scale" in variables]
        for name in quantized:
            # One scale for each row, or one for all.
            scale = variables.pop(f"{name}_scale").astype(np.float32).reshape(-1, 1)
            if scale.size not in (1, len(variables[name])):
                raise UserError(f"{name}_scale has {scale.size} scales for other rows")

            # An infinite or NaN value is an error below.
            with np.errstate(divide="ignore", invalid="ignore"):
                variables[name] = variables[name] / scale

        # Since version 3, a list of aliases follows, such as tied tables.
        for _ in range(file.unsigned(4) if version >= 3 else 0):
            alias = file.name(file.unsigned(2))
            original = file.name(file.unsigned(2))
            if original in variables:
                variables[alias] = variables[original]
        untrusted.check_finite(path, variables)
    for name, value in variables.items():
        if value.ndim:
            variables[name] = value.astype(np.float32)

    # Before revision 5, the settings of both stacks have no stack in their names.
    shared = [name for name in variables if "/" not in name and not name.startswith("with_")]
    settings = {"num_heads": np.int8(NUM_HEADS[specification])}
    settings |= {name: variables.pop(name) for name in shared}
    defaults = {f"{stack}/{name}": settings[name] for stack in STACKS for name in settings}
    return defaults | variables


def _read_settings(folder: Path, variables: Arrays) -> Settings:
    """Returns the content of config.json, with defaults.

    Before binary version 6, two variables replace it. They are taken.
    """
    settings = SETTINGS | {"add_source_eos": bool(variables.pop("with_source_eos", False))}
    if not variables.pop("with_target_bos", True):
        settings["decoder_start_token"] = "</s>"
    if (folder / "config.json").exists():
        settings |= untrusted.read_json(folder / "config.json")
    if settings["layer_norm_epsilon"] is None:
        settings["layer_norm_epsilon"] = SETTINGS["layer_norm_epsilon"]
    for key, value in settings.items():
        if key not in SETTINGS:
            if value:
                raise UserError(
                    f"has the setting {key}={format_value(value)}, which no model here has"
                )
            continue
        kind = type(SETTINGS[key])
        if not isinstance(value, kind):
            raise UserError(
                f"has the setting {key}={format_value(value)}, must be a {kind.__name__}"
            )
    return settings
