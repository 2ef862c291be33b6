"""Import of CTranslate2's model folders, also of Argos packages.

A variable that our model cannot have is an error.
"""

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

VERSIONS = range(2, 7)  # of the binary layout
DTYPES = dict(
    enumerate(map(np.dtype, ("float32", "int8", "int16", "int32", "float16", jnp.bfloat16)))
)
DTYPE_OF_SIZE = {4: DTYPES[0], 2: DTYPES[2], 1: DTYPES[1]}  # before version 4
# unless a variable says it
NUM_HEADS = {"TransformerSpec": 8, "TransformerBase": 8, "TransformerBig": 16}
WITHOUT_EFFECT = (
    "alignment_layer",
    "alignment_heads",
    "embeddings_merge",
    "alibi_use_positive_positions",
)


def recognises(path: Path) -> bool:
    return any([*folder.glob("*_vocabulary.*")] for folder in _model_folders(path))


def read(path: Path) -> PortableModel:
    """Reads a model folder, or the folder of an Argos package, which contains one and a
    SentencePiece model.
    """
    with untrusted.reading(path):
        return _Importer(_model_folders(path)[0], path).read()


def _model_folders(path: Path) -> list[Path]:
    return [folder for folder in (path, path / "model") if (folder / "model.bin").is_file()]


class _Importer:
    """A model that is read: each method takes the variables of a part, and adds settings and
    parameters.
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
        self.layers = dict.fromkeys(STACKS, 0)

    def read(self) -> PortableModel:
        self.read_layers()
        tokenizer = self.read_embeddings()
        self.read_positions()
        for name, value in self.variables.items():
            if name.rpartition("/")[2] not in WITHOUT_EFFECT and not (
                value.ndim == 0 and value == 0
            ):
                raise UserError(f"has the variable {name}, for which the models here have no part")
        if (self.package / "metadata.json").exists():
            metadata = untrusted.read_json(self.package / "metadata.json")
            if prefix := metadata.get("target_prefix"):
                raise UserError(
                    f"metadata.json has target_prefix={prefix!r:.60}, with which no model here can begin"
                )
            self.config |= {
                "data.source_language": metadata["from_code"],
                "data.target_language": metadata["to_code"],
            }
        return PortableModel(self.config, self.parameters, tokenizer)

    def take(self, name: str) -> np.ndarray | None:
        return self.variables.pop(name).astype(np.float32) if name in self.variables else None

    def scalar(self, name: str, default: float, scopes: Iterable[str] = STACKS) -> float:
        """Takes a scalar, which must have one value in all scopes."""
        values = {
            self.variables.pop(f"{scope}/{name}", np.array(default)).item() for scope in scopes
        }
        if len(values) > 1:
            raise UserError(f"{name} has the values {sorted(values)}, must have one")
        return values.pop()

    def read_layers(self) -> None:
        for stack in STACKS:
            while f"{stack}/layer_{self.layers[stack]}/ffn/linear_1/weight" in self.variables:
                self.layers[stack] += 1
        parameters = self.parameters
        for theirs, ours in names(self.layers):
            if (variable := self.take(theirs)) is not None:
                parts = np.split(variable, len(ours))
                parameters |= {name: part.T for name, part in zip(ours, parts, strict=True)}
        has_attention_bias = any(
            "attention." in name and name.endswith(".bias") for name in parameters
        )
        for name, kernel in list(parameters.items()):
            if name.endswith(".kernel") and (has_attention_bias or ".feed_forward." in name):
                parameters.setdefault(
                    name.replace(".kernel", ".bias"), np.zeros(kernel.shape[1], np.float32)
                )
        is_gated = "encoder.layers.0.feed_forward.gate.kernel" in parameters
        activation = int(self.scalar("activation", 0)), is_gated
        if activation not in ACTIVATIONS.values():
            raise UserError(
                f"has activation {activation[0]}{' with gates' * is_gated}, which no model here has"
            )
        self.config |= {
            "model.num_layers": self.layers["encoder"],
            "model.num_decoder_layers": self.layers["decoder"],
            "model.num_heads": int(self.scalar("num_heads", 0)),
            "model.d_ff": parameters["encoder.layers.0.feed_forward.inner.kernel"].shape[1],
            "model.norm_position": "pre" if self.scalar("pre_norm", 1) else "post",
            "model.final_norm": "encoder.final_norm.scale" in parameters,
            "model.layer_norm_epsilon": self.settings["layer_norm_epsilon"],
            "model.attention_bias": has_attention_bias,
            "model.activation": next(
                name for name, value in ACTIVATIONS.items() if value == activation
            ),
        }
        selves = [
            f"{stack}/layer_{layer}/self_attention"
            for stack in STACKS
            for layer in range(self.layers[stack])
        ]
        attentions = [
            *selves,
            *(f"decoder/layer_{layer}/attention" for layer in range(self.layers["decoder"])),
        ]
        if width := int(self.scalar("head_dim", 0, attentions)):
            self.config |= {"model.d_k": width, "model.d_v": width}
        if self.scalar("rotary_dim", ABSENT, selves) != ABSENT:
            if (
                self.scalar("rotary_interleave", 1, selves)
                or self.scalar("rotary_base", 1e4, selves) != 1e4
            ):
                raise UserError(
                    "has rotary_interleave or a rotary_base, must rotate halves with base 10000"
                )
            self.config["model.positions"] = "rotary"

    def read_embeddings(self) -> Tokenizer:
        """Reads embeddings and logits, with the rows of the tables in our order."""
        prefixes = (
            "encoder/embeddings" + "_0" * ("encoder/embeddings_0/weight" in self.variables),
            "decoder/embeddings",
        )
        tables = []
        for stack, prefix in zip(STACKS, prefixes, strict=True):
            table = self.variables.pop(f"{prefix}/weight").astype(np.float32)
            scale = self.variables.pop(f"{stack}/scale_embeddings", np.int8(1))
            root = math.sqrt(table.shape[1])
            factor = (root if scale else 1.0) if scale.dtype == np.int8 else float(scale)
            tables.append(table if factor == root else table * np.float32(factor / root))
        rows = [len(table) for table in tables]
        source, target = vocabularies.read_ctranslate2(
            (self.folder, self.package), self.settings, rows
        )
        (sources, targets), (source_table, target_table) = (source.ids, target.ids), tables
        projection = self.variables.pop("decoder/projection/weight")
        bias = self.take("decoder/projection/bias")
        is_tied = np.array_equal(projection, target_table)
        is_shared = is_tied and sources == targets and np.array_equal(source_table, target_table)
        # Where the decoder starts with EOS, BOS has the same row, but must not have its
        # probability.
        outputs = [
            *targets[:BOS],
            ABSENT if targets[BOS] == targets[EOS] else targets[BOS],
            *targets[EOS:],
        ]
        self.parameters["decoder.embedding.table"] = rows_in_order(target_table, targets)
        if not is_shared:
            self.parameters["encoder.embedding.table"] = rows_in_order(source_table, sources)
        if not is_tied:
            self.parameters["projection.kernel"] = rows_in_order(projection, outputs).T
        if has_bias := bias is not None or ABSENT in outputs:
            bias = np.zeros(len(projection), np.float32) if bias is None else bias
            self.parameters["output_bias"] = rows_in_order(bias, outputs, NEVER)
        self.config |= {
            "tokenizer.kind": "pieces",
            "model.d_model": target_table.shape[1],
            "model.share_embeddings": "all" if is_shared else "target" if is_tied else "none",
            "model.output_bias": has_bias,
            "model.decoder_start": "zero"
            if self.scalar("start_from_zero_embedding", 0, STACKS[1:])
            else "bos",
            # A decoder that starts with EOS is Marian's or fairseq's. Callers of such a model add
            # EOS to sources.
            "model.source_eos": self.settings["add_source_eos"] or targets[BOS] == targets[EOS],
        }
        return Tokenizer(source.vocabulary, target.vocabulary)

    def read_positions(self) -> None:
        tables = [self.take(f"{stack}/position_encodings/encodings") for stack in STACKS]
        d_model = self.config["model.d_model"]
        is_rotary = self.config.get("model.positions") == "rotary"
        # CTranslate2 then computes encodings, of which the first is that of position 1
        if tables[0] is None:
            tables = [sinusoids("sinusoidal_marian", d_model, np.arange(1, 1025))] * 2
        if kind := "rotary" if is_rotary else fitting_positions(SINUSOIDS, tables):
            self.config["model.positions"] = kind
            return
        longest = min(len(tables[0]) - 50, 256)
        self.config |= {"model.positions": "learned", "model.max_positions": len(tables[0])}
        self.config |= {"data.max_length": longest, "decoding.max_source_length": longest}
        self.parameters |= {
            f"{stack}.positions.table": table for stack, table in zip(STACKS, tables, strict=True)
        }


def _read_variables(path: Path) -> Arrays:
    """Returns the variables of a model.bin, dequantized.

    The names of all settings begin with the stack, or with_.
    """
    variables = {}
    with untrusted.reading(path):
        file = untrusted.Cursor(path)
        if (version := file.unsigned(4)) not in VERSIONS:
            raise UserError(
                f"has binary version {version}, must be {VERSIONS[0]} to {VERSIONS[-1]}"
            )
        specification = file.name(file.unsigned(2))
        _revision = file.unsigned(4)
        if specification not in NUM_HEADS:
            raise UserError(f"is a {specification}, must be an encoder-decoder TransformerSpec")
        for _ in range(file.unsigned(4)):
            name = file.name(file.unsigned(2))
            shape = [file.unsigned(4) for _ in range(file.unsigned(1))]
            kind = file.unsigned(1)
            _size = file.unsigned(4)
            variables[name] = file.array(
                DTYPES[kind] if version >= 4 else DTYPE_OF_SIZE[kind], shape
            )
        for name in [name for name in variables if f"{name}_scale" in variables]:
            scale = variables.pop(f"{name}_scale").astype(np.float32).reshape(-1, 1)
            # an infinite or NaN value is an error below
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
    settings = {"num_heads": np.int8(NUM_HEADS[specification])} | {
        name: variables.pop(name) for name in shared
    }
    return {
        f"{stack}/{name}": value for stack in STACKS for name, value in settings.items()
    } | variables


def _read_settings(folder: Path, variables: Arrays) -> dict[str, Any]:
    """Returns the content of config.json; before binary version 6, variables say the same, and are
    taken.
    """
    settings = SETTINGS | {"add_source_eos": bool(variables.pop("with_source_eos", False))}
    if not variables.pop("with_target_bos", True):
        settings["decoder_start_token"] = "</s>"
    if (folder / "config.json").exists():
        settings |= untrusted.read_json(folder / "config.json")
    if settings["layer_norm_epsilon"] is None:
        settings["layer_norm_epsilon"] = SETTINGS["layer_norm_epsilon"]
    for key, value in settings.items():
        if key not in SETTINGS and value:
            raise UserError(f"has the setting {key}={show(value)}, which no model here has")
        if key in SETTINGS and not isinstance(value, kind := type(SETTINGS[key])):
            raise UserError(f"has the setting {key}={show(value)}, must be a {kind.__name__}")
    return settings
