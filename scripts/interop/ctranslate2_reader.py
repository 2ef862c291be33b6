"""Import of CTranslate2's model folders and of Argos packages."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from scripts.interop import untrusted, vocabularies
from scripts.interop.ctranslate2 import ACTIVATIONS, SETTINGS, SINUSOIDS, STACKS, names
from scripts.interop.portable import (
    ABSENT,
    NEVER,
    Arrays,
    PortableModel,
    fitting_positions,
    rows_in_order,
    sinusoids,
)
from transformer.config.keys import show
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
    return any([*folder.glob("*_vocabulary.*")] for folder in _model_folders(path))


def read(path: Path) -> PortableModel:
    """Reads a model folder, or an Argos package: a model folder and a SentencePiece model."""
    with untrusted.reading(path):
        return _Importer(_model_folders(path)[0], path).read()


def _model_folders(path: Path) -> list[Path]:
    return [folder for folder in (path, path / "model") if (folder / "model.bin").is_file()]


class _Importer:
    """A model during import. Each method takes the variables of one part of the model.

    The method adds settings to `config` and arrays to `parameters`. Variables that no method takes
    are an error.
    """

    def __init__(self, folder: Path, package: Path) -> None:
        self.folder = folder
        self.package = package
        self.variables = _read_variables(folder / "model.bin")
        self.settings = _read_settings(folder, self.variables)
        self.config = {
            "decoding.length_penalty": 1.0,
            "decoding.length_penalty_form": "power",
            "decoding.stopping": "ended",
        }
        self.parameters = {}

    def read(self) -> PortableModel:
        layers = self.read_layers()
        self.read_head_widths(layers)
        tokenizer = self.read_embeddings()
        self.read_positions()
        for name, value in self.variables.items():
            is_off = value.ndim == 0 and value == 0
            if name.rpartition("/")[2] not in WITHOUT_EFFECT and not is_off:
                raise UserError(f"has the variable {name}, for which the models here have no part")
        if (self.package / "metadata.json").exists():
            metadata = untrusted.read_json(self.package / "metadata.json")
            prefix = metadata.get("target_prefix")
            if prefix:
                raise UserError(
                    f"metadata.json has target_prefix={prefix!r:.60}, with which no model here can "
                    "begin"
                )
            self.config["data.source_language"] = metadata["from_code"]
            self.config["data.target_language"] = metadata["to_code"]
        return PortableModel(self.config, self.parameters, tokenizer)

    def take(self, name: str) -> np.ndarray | None:
        return self.variables.pop(name).astype(np.float32) if name in self.variables else None

    def take_scalar(self, name: str, default: float, scopes: Iterable[str] = STACKS) -> float:
        """Takes a scalar, which must have one value in all scopes."""
        values = {
            self.variables.pop(f"{scope}/{name}", np.array(default)).item() for scope in scopes
        }
        if len(values) > 1:
            raise UserError(f"{name} has the values {sorted(values)}, must have one")
        return values.pop()

    def read_layers(self) -> dict[str, int]:
        """Reads the layers and norms of both stacks. Returns the numbers of layers."""
        layers = dict.fromkeys(STACKS, 0)
        for stack in STACKS:
            while f"{stack}/layer_{layers[stack]}/ffn/linear_1/weight" in self.variables:
                layers[stack] += 1
        parameters = self.parameters
        for theirs, ours in names(layers):
            variable = self.take(theirs)
            if variable is not None:
                parts = np.split(variable, len(ours))
                parameters |= {name: part.T for name, part in zip(ours, parts, strict=True)}

        # A linear map without a bias gets a bias of 0 where the model here must have one.
        has_attention_bias = any(
            "attention." in name and name.endswith(".bias") for name in parameters
        )
        for name, kernel in list(parameters.items()):
            if name.endswith(".kernel") and (has_attention_bias or ".feed_forward." in name):
                bias = np.zeros(kernel.shape[1], np.float32)
                parameters.setdefault(name.replace(".kernel", ".bias"), bias)

        number = int(self.take_scalar("activation", 0))
        is_gated = "encoder.layers.0.feed_forward.gate.kernel" in parameters
        activations = [name for name, value in ACTIVATIONS.items() if value == (number, is_gated)]
        if not activations:
            gates = " with gates" if is_gated else ""
            raise UserError(f"has activation {number}{gates}, which no model here has")
        self.config |= {
            "model.num_layers": layers["encoder"],
            "model.num_decoder_layers": layers["decoder"],
            "model.num_heads": int(self.take_scalar("num_heads", 0)),
            "model.d_ff": parameters["encoder.layers.0.feed_forward.inner.kernel"].shape[1],
            "model.norm_position": "pre" if self.take_scalar("pre_norm", 1) else "post",
            "model.final_norm": "encoder.final_norm.scale" in parameters,
            "model.layer_norm_epsilon": self.settings["layer_norm_epsilon"],
            "model.attention_bias": has_attention_bias,
            "model.activation": activations[0],
        }
        return layers

    def read_head_widths(self, layers: dict[str, int]) -> None:
        """Reads d_k and the rotary positions, which all attentions must share."""
        encoder = [f"encoder/layer_{layer}" for layer in range(layers["encoder"])]
        decoder = [f"decoder/layer_{layer}" for layer in range(layers["decoder"])]
        self_attentions = [f"{layer}/self_attention" for layer in encoder + decoder]
        cross_attentions = [f"{layer}/attention" for layer in decoder]
        width = int(self.take_scalar("head_dim", 0, self_attentions + cross_attentions))
        if width:
            self.config |= {"model.d_k": width, "model.d_v": width}
        if self.take_scalar("rotary_dim", ABSENT, self_attentions) == ABSENT:
            return
        is_interleaved = self.take_scalar("rotary_interleave", 1, self_attentions)
        if is_interleaved or self.take_scalar("rotary_base", 1e4, self_attentions) != 1e4:
            raise UserError(
                "has rotary_interleave or a rotary_base, must rotate halves with base 10000"
            )
        self.config["model.positions"] = "rotary"

    def read_embeddings(self) -> Tokenizer:
        """Reads embeddings and logits, with the rows of the tables in the order of tokens here."""
        is_indexed = "encoder/embeddings_0/weight" in self.variables
        source_prefix = "encoder/embeddings_0" if is_indexed else "encoder/embeddings"
        tables = []
        for stack, prefix in zip(STACKS, (source_prefix, "decoder/embeddings"), strict=True):
            table = self.variables.pop(f"{prefix}/weight").astype(np.float32)
            # The scale is a flag or a factor. The model here always multiplies by sqrt(d_model).
            scale = self.variables.pop(f"{stack}/scale_embeddings", np.int8(1))
            root = math.sqrt(table.shape[1])
            factor = float(scale)
            if scale.dtype == np.int8:
                factor = root if scale else 1.0
            if factor != root:
                table = table * np.float32(factor / root)
            tables.append(table)
        source_table, target_table = tables
        source, target = vocabularies.read_ctranslate2(
            (self.folder, self.package), self.settings, [len(table) for table in tables]
        )
        projection = self.variables.pop("decoder/projection/weight")
        bias = self.take("decoder/projection/bias")
        starts_with_eos = target.ids[BOS] == target.ids[EOS]
        outputs = [*target.ids]
        if starts_with_eos:
            # BOS has the row of EOS, but must not have its probability.
            outputs[BOS] = ABSENT

        share = "none"
        if np.array_equal(projection, target_table):
            is_same = source.ids == target.ids and np.array_equal(source_table, target_table)
            share = "all" if is_same else "target"
        self.parameters["decoder.embedding.table"] = rows_in_order(target_table, target.ids)
        if share != "all":
            self.parameters["encoder.embedding.table"] = rows_in_order(source_table, source.ids)
        if share == "none":
            self.parameters["projection.kernel"] = rows_in_order(projection, outputs).T
        has_bias = bias is not None or ABSENT in outputs
        if has_bias:
            if bias is None:
                bias = np.zeros(len(projection), np.float32)
            self.parameters["output_bias"] = rows_in_order(bias, outputs, NEVER)

        starts_from_zero = self.take_scalar("start_from_zero_embedding", 0, STACKS[1:])
        self.config |= {
            "tokenizer.kind": "pieces",
            "model.d_model": target_table.shape[1],
            "model.share_embeddings": share,
            "model.output_bias": has_bias,
            "model.decoder_start": "zero" if starts_from_zero else "bos",
            # Decoders of Marian and fairseq start with EOS. Callers of such models add EOS to
            # sources.
            "model.source_eos": self.settings["add_source_eos"] or starts_with_eos,
        }
        return vocabularies.make_tokenizer(source, target)

    def read_positions(self) -> None:
        tables = [self.take(f"{stack}/position_encodings/encodings") for stack in STACKS]
        if "model.positions" in self.config:
            return  # they are rotary
        if tables[0] is None:
            # CTranslate2 computes encodings, and its first position is 1.
            d_model = self.config["model.d_model"]
            tables = [sinusoids("sinusoidal_marian", d_model, np.arange(1, 1025))] * 2
        kind = fitting_positions(SINUSOIDS, tables)
        if kind is not None:
            self.config["model.positions"] = kind
            return
        max_positions = len(tables[0])
        longest = min(max_positions - 50, 256)
        self.config |= {
            "model.positions": "learned",
            "model.max_positions": max_positions,
            "data.max_length": longest,
            "decoding.max_source_length": longest,
        }
        for stack, table in zip(STACKS, tables, strict=True):
            self.parameters[f"{stack}.positions.table"] = table


def _read_variables(path: Path) -> Arrays:
    """Returns the variables of a model.bin, dequantized.

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
            dtype = DTYPES[kind] if version >= 4 else DTYPE_OF_SIZE[kind]
            variables[name] = file.array(dtype, shape)

        quantized = [name for name in variables if f"{name}_scale" in variables]
        for name in quantized:
            # One scale for each row, or one for all.
            scale = variables.pop(f"{name}_scale").astype(np.float32).reshape(-1, 1)
            # An infinite or NaN value is an error below.
            with np.errstate(divide="ignore", invalid="ignore"):
                variables[name] = variables[name] / scale
        for _ in range(file.unsigned(4) if version >= 3 else 0):
            alias = file.name(file.unsigned(2))
            original = file.name(file.unsigned(2))
            if original in variables:
                variables[alias] = variables[original]
        untrusted.check_finite(path, variables)

    # Before revision 5, the settings of both stacks have no stack in their names.
    shared = [name for name in variables if "/" not in name and not name.startswith("with_")]
    settings = {"num_heads": np.int8(NUM_HEADS[specification])}
    settings |= {name: variables.pop(name) for name in shared}
    defaults = {f"{stack}/{name}": settings[name] for stack in STACKS for name in settings}
    return defaults | variables


def _read_settings(folder: Path, variables: Arrays) -> dict[str, Any]:
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
                raise UserError(f"has the setting {key}={show(value)}, which no model here has")
            continue
        kind = type(SETTINGS[key])
        if not isinstance(value, kind):
            raise UserError(f"has the setting {key}={show(value)}, must be a {kind.__name__}")
    return settings
