"""Import of CTranslate2's model folders, and of Argos packages, which contain one and a SentencePiece model.

A variable with an effect that no part of our model has is an error.
"""

import contextlib
import math
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from scripts.interop import ctranslate2_vocabularies, untrusted
from scripts.interop.ctranslate2_variables import (
    ACTIVATIONS,
    SIDES,
    SINUSOIDS,
    STACKS,
    is_sinusoidal,
    names,
    read_settings,
    read_variables,
    sinusoids,
)
from scripts.interop.portable import ABSENT, NEVER, PortableModel, rows_in_order
from transformer.data.tokenizers.piece_vocabulary import PieceVocabulary
from transformer.errors import UserError
from transformer.special_tokens import BOS, EOS

WITHOUT_EFFECT = ("alignment_layer", "alignment_heads", "embeddings_merge", "alibi_use_positive_positions")


def recognises(path: Path) -> bool:
    folders = [folder for folder in (path, path / "model") if (folder / "model.bin").is_file()]
    return path.suffix == ".argosmodel" or any([*folder.glob("*_vocabulary.*")] for folder in folders)


def read(path: Path) -> PortableModel:
    """Reads a model folder, or an Argos package: the archive, or the folder that it contains."""
    with contextlib.ExitStack() as stack:
        package = path if path.is_dir() else _extract(path, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        folders = [folder for folder in (package, package / "model") if (folder / "model.bin").exists()]
        if len(folders) != 1:
            raise UserError(f"{path}: has {len(folders) or 'no'} files model.bin, must have one")
        with untrusted.reading(path):
            return _Importer(folders[0], package).read()


def _extract(path: Path, folder: Path) -> Path:
    """Copies the model and the SentencePiece model of an Argos package to a folder."""
    (folder / "model").mkdir()
    with untrusted.reading(path), zipfile.ZipFile(path) as archive:
        untrusted.check_archive(archive, path)
        for member in archive.infolist():
            parts = [untrusted.checked_name(part) for part in member.filename.removesuffix("/").split("/")]
            is_of_model = len(parts) == 3 and parts[1] == "model"
            if not member.is_dir() and (len(parts) == 2 or is_of_model):
                copy = folder.joinpath(*parts[1:])
                if copy.exists():
                    raise UserError(f"{path}: has two files {copy.name}, must have those of one model")
                copy.write_bytes(archive.read(member))
    return folder


class _Importer:
    """A model that is read: each method takes the variables of a part, and adds settings and parameters."""

    def __init__(self, folder: Path, package: Path) -> None:
        self.folder, self.package = folder, package
        self.variables, self.num_heads = read_variables(folder / "model.bin")
        self.settings = read_settings(folder, self.variables)
        self.config: dict[str, Any] = {"decoding.length_penalty": 1.0, "decoding.length_penalty_form": "power"}
        self.parameters: dict[str, np.ndarray] = {}
        self.layers = dict.fromkeys(STACKS, 0)
        self.sides: list[ctranslate2_vocabularies.Side] = []

    def read(self) -> PortableModel:
        self.read_layers()
        self.read_attention()
        self.read_embeddings()
        self.read_positions()
        for name, value in self.variables.items():
            if name.rpartition("/")[2] not in WITHOUT_EFFECT and not (value.ndim == 0 and value == 0):
                raise UserError(f"has the variable {name}, for which the models here have no part")
        if (self.package / "metadata.json").exists():
            metadata = untrusted.read_json(self.package / "metadata.json")
            self.config |= {"data.source_language": metadata["from_code"], "data.target_language": metadata["to_code"]}
        tokenizer = ctranslate2_vocabularies.read_tokenizer((self.folder, self.package), self.sides)
        if isinstance(tokenizer.source, PieceVocabulary):
            self.config["tokenizer.kind"] = "pieces"
        shortlist = ctranslate2_vocabularies.read_shortlist(self.folder / "vmap.txt", self.sides, tokenizer)
        return PortableModel(self.config, self.parameters, tokenizer, shortlist)

    def take(self, name: str) -> np.ndarray | None:
        return self.variables.pop(name).astype(np.float32) if name in self.variables else None

    def scalar(self, name: str, default: float, scopes: Iterable[str] = STACKS) -> float:
        """Takes a scalar, which must have one value in all scopes."""
        values = {self.variables.pop(f"{scope}/{name}", np.array(default)).item() for scope in scopes}
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
        has_attention_bias = any("attention." in name and name.endswith(".bias") for name in parameters)
        for name, kernel in list(parameters.items()):
            if name.endswith(".kernel") and (has_attention_bias or ".feed_forward." in name):
                parameters.setdefault(name.replace(".kernel", ".bias"), np.zeros(kernel.shape[1], np.float32))
            if name.endswith(".scale") and name.replace(".scale", ".bias") not in parameters:
                raise UserError(f"has RMSNorm ({name} without a bias), must have LayerNorm")
        is_gated = "encoder.layers.0.feed_forward.gate.kernel" in parameters
        activation = int(self.scalar("activation", 0)), is_gated
        if activation not in ACTIVATIONS.values():
            raise UserError(f"has activation {activation[0]}{' with gates' * is_gated}, which no model here has")
        self.config |= {
            "model.num_layers": self.layers["encoder"],
            "model.num_decoder_layers": self.layers["decoder"],
            "model.d_ff": parameters["encoder.layers.0.feed_forward.inner.kernel"].shape[1],
            "model.norm_position": "pre" if self.scalar("pre_norm", 1) else "post",
            "model.final_norm": "encoder.final_norm.scale" in parameters,
            "model.layer_norm_epsilon": self.settings["layer_norm_epsilon"] or 1e-5,
            "model.attention_bias": has_attention_bias,
            "model.activation": next(name for name, value in ACTIVATIONS.items() if value == activation),
        }

    def read_attention(self) -> None:
        selves = [f"{stack}/layer_{layer}/self_attention" for stack in STACKS for layer in range(self.layers[stack])]
        attentions = [*selves, *(f"decoder/layer_{layer}/attention" for layer in range(self.layers["decoder"]))]
        heads = int(self.scalar("num_heads", self.num_heads))
        d_model, width = self.parameters["encoder.layers.0.self_attention.query.kernel"].shape
        head_width = int(self.scalar("head_dim", width // max(heads, 1), attentions))
        scale = self.scalar("queries_scale", 0.0, attentions)
        if scale not in (0.0, 1.0):
            raise UserError(f"has queries_scale={scale}, must have 1 or the root of the head width")
        self.config |= {"model.num_heads": heads, "model.attention": "dot_product_unscaled" if scale else "dot_product"}
        if head_width * heads != d_model:
            self.config |= {"model.d_k": head_width, "model.d_v": head_width}
        if self.scalar("rotary_dim", ABSENT, selves) != ABSENT:
            if self.scalar("rotary_interleave", 1, selves) or self.scalar("rotary_base", 1e4, selves) != 1e4:
                raise UserError("has rotary_interleave or a rotary_base, must rotate halves with base 10000")
            self.config["model.positions"] = "rotary"

    def read_embeddings(self) -> None:
        """Reads embeddings and logits, with the rows of the tables in our order."""
        prefixes = "encoder/embeddings" + "_0" * ("encoder/embeddings_0/weight" in self.variables), "decoder/embeddings"
        tables = []
        for stack, prefix in zip(STACKS, prefixes, strict=True):
            table = self.variables.pop(f"{prefix}/weight").astype(np.float32)
            scale = self.variables.pop(f"{prefix}/multiply_by_sqrt_depth", np.int8(1))
            scale = self.variables.pop(f"{stack}/scale_embeddings", scale)
            root = math.sqrt(table.shape[1])
            factor = (root if scale else 1.0) if scale.dtype == np.int8 else float(scale)
            tables.append(table if factor == root else table * np.float32(factor / root))
            self.sides.append(ctranslate2_vocabularies.Side(self.folder, SIDES[stack], self.settings, len(table)))
        (sources, targets), (source_table, target_table) = (side.ids for side in self.sides), tables
        projection, bias = self.variables.pop("decoder/projection/weight"), self.take("decoder/projection/bias")
        is_tied = np.array_equal(projection, target_table)
        is_shared = is_tied and sources == targets and np.array_equal(source_table, target_table)
        # Where the decoder starts with EOS, BOS has the same row, but must not have its probability.
        outputs = [*targets[:BOS], ABSENT if targets[BOS] == targets[EOS] else targets[BOS], *targets[EOS:]]
        self.parameters["decoder.embedding.table"] = rows_in_order(target_table, targets)
        if not is_shared:
            self.parameters["encoder.embedding.table"] = rows_in_order(source_table, sources)
        if not is_tied:
            self.parameters["projection.kernel"] = rows_in_order(projection, outputs).T
        if has_bias := bias is not None or ABSENT in outputs:
            bias = np.zeros(len(projection), np.float32) if bias is None else bias
            self.parameters["output_bias"] = rows_in_order(bias, outputs, NEVER)
        self.config |= {
            "model.d_model": target_table.shape[1],
            "model.share_embeddings": "all" if is_shared else "target" if is_tied else "none",
            "model.output_bias": has_bias,
            "model.decoder_start": "zero" if self.scalar("start_from_zero_embedding", 0, STACKS[1:]) else "bos",
            "model.source_eos": bool(self.settings["add_source_eos"]),
        }

    def read_positions(self) -> None:
        tables = [self.take(f"{stack}/position_encodings/encodings") for stack in STACKS]
        d_model, is_rotary = self.config["model.d_model"], self.config.get("model.positions") == "rotary"
        if tables[0] is None:  # CTranslate2 then computes encodings, of which the first is that of position 1
            tables = [sinusoids("sinusoidal_marian", d_model, np.arange(1, 1025))] * 2
        kinds = [name for name in SINUSOIDS if all(is_sinusoidal(table, name) for table in tables)]
        if kinds or is_rotary:
            self.config["model.positions"] = "rotary" if is_rotary else kinds[0]
            return
        longest = min(len(tables[0]) - 50, 256)
        self.config |= {"model.positions": "learned", "model.max_positions": len(tables[0])}
        self.config |= {"data.max_length": longest, "decoding.max_source_length": longest}
        self.parameters |= {f"{stack}.positions.table": table for stack, table in zip(STACKS, tables, strict=True)}
