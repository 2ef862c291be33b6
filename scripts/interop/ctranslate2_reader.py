"""CTranslate2's model folders, and Argos packages, which contain one and a SentencePiece model.

CTranslate2 stores the transpose of a kernel, and one matrix for the projections of one input: `names` pairs its
variables with our parameters. A variable with an effect that no part of our model has is an error.
"""

import contextlib
import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_collections
import numpy as np

from scripts.interop import untrusted
from scripts.interop.portable import ABSENT, NEVER, PortableModel, foreign_ids, rows_in_order
from transformer.config.keys import show
from transformer.data.tokenizers import vocabulary
from transformer.data.tokenizers.piece_vocabulary import PieceVocabulary
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import SentencePieceVocabulary
from transformer.decoding.shortlist import Shortlist
from transformer.errors import UserError
from transformer.model.positions import POSITIONS
from transformer.special_tokens import BOS, EOS, SPECIAL, SPECIAL_PIECES

VERSIONS = range(2, 7)  # of the binary layout
DTYPES = dict(enumerate(map(np.dtype, ("float32", "int8", "int16", "int32", "float16", jnp.bfloat16))))
DTYPE_OF_SIZE = {4: DTYPES[0], 2: DTYPES[2], 1: DTYPES[1]}  # before version 4
FLAGS = {"source_bos": False, "source_eos": False, "target_bos": True}  # before binary version 6
SIDES = {"encoder": "source", "decoder": "target"}
NUM_HEADS = {"TransformerSpec": 8, "TransformerBase": 8, "TransformerBig": 16}  # unless a variable says it
WITHOUT_EFFECT = ("alignment_layer", "alignment_heads", "embeddings_merge", "alibi_use_positive_positions")
STACKS = ("encoder", "decoder")
ACTIVATIONS = {"relu": (0, False), "gelu": (1, False), "swish": (2, False), "gelu_exact": (3, False)}
ACTIVATIONS |= {"geglu": (1, True), "swiglu": (2, True), "glu": (6, True)}  # the number, and whether it is gated
SINUSOIDS = ("sinusoidal", "sinusoidal_concatenated", "sinusoidal_marian")
TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>"}
DEFAULTS = TOKENS | {"add_source_eos": False, "layer_norm_epsilon": None}
MAX_TRANSLATIONS = 64  # of a source token in a shortlist

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
                with archive.open(member) as source, folder.joinpath(*parts[1:]).open("xb") as copy:
                    shutil.copyfileobj(source, copy)
    return folder


class _Importer:
    """A model that is read: each method takes the variables of a part, and adds settings and parameters."""

    def __init__(self, folder: Path, package: Path) -> None:
        self.folder, self.package = folder, package
        self.variables, self.num_heads = read_variables(folder / "model.bin")
        self.settings = self.read_settings()
        self.config: dict[str, Any] = {"decoding.length_penalty": 1.0, "decoding.length_penalty_form": "power"}
        self.parameters: dict[str, np.ndarray] = {}
        self.layers = dict.fromkeys(STACKS, 0)
        self.tokens, self.ids = [], []

    def read(self) -> PortableModel:
        self.read_layers()
        self.read_attention()
        self.read_embeddings()
        self.read_positions()
        for name, value in self.variables.items():
            if name.rpartition("/")[2] not in WITHOUT_EFFECT and not (value.ndim == 0 and value == 0):
                raise UserError(f"has the variable {name}, for which the models here have no part")
        tokenizer = self.read_tokenizer()
        return PortableModel(self.config, self.parameters, tokenizer, self.read_shortlist(tokenizer))

    def take(self, name: str) -> np.ndarray | None:
        return self.variables.pop(name).astype(np.float32) if name in self.variables else None

    def scalar(self, name: str, default: float, scopes: Iterable[str] = STACKS) -> float:
        """Takes a scalar, which must have one value in all scopes."""
        values = {self.variables.pop(f"{scope}/{name}", np.array(default)).item() for scope in scopes}
        if len(values) > 1:
            raise UserError(f"{name} has the values {sorted(values)}, must have one")
        return values.pop()

    def read_settings(self) -> dict[str, Any]:
        """Returns the content of config.json; before binary version 6, variables say the same."""
        flags = {name: bool(self.variables.pop(f"with_{name}", default)) for name, default in FLAGS.items()}
        defaults = DEFAULTS | {"add_source_bos": flags["source_bos"], "add_source_eos": flags["source_eos"]}
        defaults["decoder_start_token"] = "<s>" if flags["target_bos"] else "</s>"
        path = self.folder / "config.json"
        settings = defaults | (untrusted.read_json(path) if path.exists() else {})
        for key, value in settings.items():
            if key not in DEFAULTS and value:
                raise UserError(f"has the setting {key}={show(value)}, which no model here has")
        if settings["decoder_start_token"] is None:
            raise UserError(
                "has no decoder_start_token: the user gives the first target token, which no command here can"
            )
        return settings

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
        head_width = int(self.scalar("head_dim", width // heads, attentions))
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
            self.tokens.append(self.read_tokens(SIDES[stack], len(table)))
            self.ids.append(self.order(self.tokens[-1]))
        (sources, targets), (source_table, target_table) = self.ids, tables
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

    def read_tokens(self, side: str, rows: int) -> list[str]:
        """Returns the tokens of a table: the vocabulary, <unk> if that lacks it, and names of padding."""
        paths = [self.folder / f"{name}_vocabulary{end}" for name in (side, "shared") for end in (".json", ".txt")]
        path = next((path for path in paths if path.exists()), paths[0])
        tokens = untrusted.read_json(path, list) if path.suffix == ".json" else untrusted.read_text(path).split("\n")
        tokens = tokens[:-1] if path.suffix == ".txt" and tokens[-1] == "" else tokens
        tokens += [] if self.settings["unk_token"] in tokens else [self.settings["unk_token"]]
        if len(tokens) > rows:
            raise UserError(f"{path}: has {len(tokens)} tokens, must have at most the {rows} rows of the {side} table")
        return [*tokens, *(f"<padding {row}>" for row in range(len(tokens), rows))]

    def order(self, tokens: list[str]) -> list[int]:
        """Returns CTranslate2's id of each of our tokens."""
        ids = {token: id_ for id_, token in enumerate(tokens)}
        start = self.settings["decoder_start_token"]
        pad = next((token for token in ("<pad>", "<blank>") if token in ids and token != start), None)
        names = self.settings["eos_token"], self.settings["unk_token"], pad, start
        eos, unk, *rest = [ids.get(token, ABSENT) for token in names]
        return foreign_ids(eos, unk, [id_ for id_ in range(len(tokens)) if id_ not in (eos, unk, *rest)], *rest)

    def read_positions(self) -> None:
        tables = [self.take(f"{stack}/position_encodings/encodings") for stack in STACKS]
        d_model, is_rotary = self.config["model.d_model"], self.config.get("model.positions") == "rotary"
        if tables[0] is None:  # CTranslate2 then computes encodings, of which the first is that of position 1
            tables = [sinusoids("sinusoidal_marian", d_model, np.arange(1, 1025))] * 2
        kinds = [name for name in SINUSOIDS if all(is_sinusoidal(table, name) for table in tables)]
        if kinds or is_rotary:
            self.config["model.positions"] = "rotary" if is_rotary else kinds[0]
            return
        rows = len(tables[0])
        longest = min(rows - 50, 256)
        self.config |= {"model.positions": "learned", "model.max_positions": rows, "data.max_length": longest}
        self.config |= {"decoding.max_source_length": longest}
        self.parameters |= {f"{stack}.positions.table": table for stack, table in zip(STACKS, tables, strict=True)}

    def read_tokenizer(self) -> Tokenizer:
        """Returns the vocabularies, segmented by the SentencePiece models in the folder, or by spaces."""
        pieces = [
            [*SPECIAL_PIECES, *(tokens[id_] for id_ in ids[SPECIAL:])]
            for tokens, ids in zip(self.tokens, self.ids, strict=True)
        ]
        models = [self.read_segmenter(side) for side in SIDES.values()]
        if all(model is not None and model.pieces == side for model, side in zip(models, pieces, strict=True)):
            is_one = models[0].serialized == models[1].serialized
            return Tokenizer(models[0], models[0] if is_one else models[1])
        models = [model and model.serialized for model in models]
        source = PieceVocabulary(pieces[0], models)
        is_one = pieces[0] == pieces[1]
        return Tokenizer(source, source.target_view if is_one else PieceVocabulary(pieces[1], models).target_view)

    def read_segmenter(self, side: str) -> SentencePieceVocabulary | None:
        paths = [
            folder / name for folder in (self.folder, self.package) for name in (f"{side}.spm", "sentencepiece.model")
        ]
        path = next((path for path in paths if path.exists()), None)
        return path and vocabulary.load(path.read_bytes(), str(path))

    def read_shortlist(self, tokenizer: Tokenizer) -> Shortlist | None:
        """Reads vmap.txt, except the candidates of sequences of several tokens."""
        path = self.folder / "vmap.txt"
        if not path.exists():
            return None
        ours = [
            {tokens[id_]: token for token, id_ in enumerate(ids) if id_ != ABSENT}
            for tokens, ids in zip(self.tokens, self.ids, strict=True)
        ]
        candidates = {}
        for line in untrusted.read_text(path).split("\n"):
            source, _, targets = line.partition("\t")
            candidates[source] = [ours[1][target] for target in targets.split(" ") if target in ours[1]]
        translations = np.full((tokenizer.source.size, MAX_TRANSLATIONS), -1, np.int32)
        for source, targets in candidates.items():
            if source in ours[0]:
                translations[ours[0][source], : len(targets)] = targets[:MAX_TRANSLATIONS]
        frequent = np.array(candidates.get("", []), np.int32)
        return Shortlist(translations, frequent, tokenizer.target.size, tokenizer.is_shared)


def sinusoids(name: str, d_model: int, positions: np.ndarray) -> np.ndarray:
    """Returns the encodings of these positions, one a row."""
    return np.asarray(POSITIONS[name](ml_collections.ConfigDict({"d_model": d_model}), None)(positions[None])[0])


def is_sinusoidal(table: np.ndarray, name: str) -> bool:
    """Tells whether a table of positions has these encodings, up to the rounding of bfloat16."""
    return np.abs(table - sinusoids(name, table.shape[1], np.arange(len(table)))).max() < 5e-3
