"""Marian's .npz models with their vocabularies, in and out."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from scripts.interop import marian_architecture, marian_vocabularies, untrusted
from scripts.interop.marian_architecture import OUTPUT, OUTPUT_BIAS
from scripts.interop.marian_vocabularies import Side
from scripts.interop.portable import ABSENT, NEVER, PortableModel, rows_in_order
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.errors import UserError, first_of

SETTINGS = "special:model.yml"  # the array with the settings of the architecture: YAML that ends with NUL
OLD_OUTPUT = "decoder_ff_logit_out_W"  # the transpose of OUTPUT
MODEL, SEARCH = "model.npz", "decoder.yml"


def recognises(path: Path) -> bool:
    """Tells whether this is a .npz file with a vocabulary beside it, or their folder."""
    return bool(models_in(path, ".npz")) and bool(marian_vocabularies.in_folder(path if path.is_dir() else path.parent))


def read(path: Path) -> PortableModel:
    """Reads a .npz file, or the only one in a folder. Raises UserError if it cannot be expressed here."""
    path = only_model(path, ".npz")
    return assemble(path, untrusted.read_npz(path))


def models_in(path: Path, suffix: str) -> list[Path]:
    """Returns the files of the models that a path names. The state of Marian's optimizer is none."""
    paths = sorted(path.glob("*")) if path.is_dir() else [path]
    return [path for path in paths if path.name.endswith(suffix) and not path.name.endswith(".optimizer.npz")]


def only_model(path: Path, suffix: str) -> Path:
    """Returns the file of the model that a path names. Raises UserError unless it is exactly one."""
    models = models_in(path, suffix)
    if len(models) != 1:
        listed = first_of([model.name for model in models], 3, ", ")
        raise UserError(f"{path}: has {len(models)} models ({listed}); name the file of one")
    return models[0]


def assemble(path: Path, arrays: dict[str, np.ndarray]) -> PortableModel:
    """Returns the model of the arrays in a file of Marian's. Raises UserError if it cannot be expressed here."""
    if SETTINGS not in arrays:
        raise UserError(f"{path}: has no array {SETTINGS}, as models of Marian have")
    with untrusted.reading(path):
        text = arrays.pop(SETTINGS).tobytes().split(b"\0")[0].decode()
    settings, search = untrusted.parse_yaml(text, path), _search_settings(path)
    source, target = marian_vocabularies.read(path.parent, search.get("vocabs"))
    tokenizer = Tokenizer(source.vocabulary, target.vocabulary)
    config = marian_architecture.to_config(settings, path, len(arrays)) | _search_config(search, path)
    ties_sides, ties_output = (
        settings.get("tied-embeddings-all") or settings.get(f"tied-embeddings{part}") for part in ("-src", "")
    )
    is_one_table = ties_sides and ties_output and tokenizer.is_shared
    config["model.share_embeddings"] = "all" if is_one_table else "target" if ties_output else "none"
    config["tokenizer.kind"] = marian_vocabularies.kind(source.vocabulary)
    if ties_sides and not is_one_table and "Wemb" in arrays:  # not expressible here but with two equal tables
        arrays["encoder_Wemb"] = arrays["decoder_Wemb"] = arrays.pop("Wemb")
    if OLD_OUTPUT in arrays:
        arrays[OUTPUT] = arrays.pop(OLD_OUTPUT).T
    if settings.get("output-omit-bias"):
        arrays[OUTPUT_BIAS] = np.zeros((1, target.size), np.float32)
    return PortableModel(config, _parameters(path, arrays, config, source, target), tokenizer)


def _parameters(
    path: Path, arrays: dict[str, np.ndarray], config: dict[str, Any], source: Side, target: Side
) -> dict[str, np.ndarray]:
    names, parameters = marian_architecture.parameter_names(config), {}
    if differing := sorted(set(names.values()) ^ arrays.keys()):
        described = [f"{'has' if name in arrays else 'lacks'} {name}" for name in differing]
        raise UserError(f"{path}: has other parameters than its settings say ({first_of(described, 3)})")
    for name, marian_name in names.items():
        array, side = arrays[marian_name].astype(np.float32), source if name.startswith("encoder") else target
        is_table, is_matrix = marian_name.endswith(("Wemb", OUTPUT)), name.endswith(("kernel", "table"))
        if array.ndim != 2 or not (is_matrix or len(array) == 1):
            raise UserError(f"{path}: {marian_name} has the shape {array.shape}; it must be a matrix, or one row")
        array = array if is_matrix else array[0]
        if is_table or name == "output_bias":
            if len(array) != side.size:
                raise UserError(f"{path}: {marian_name} has {len(array)} tokens, and the vocabulary {side.size}")
            array = rows_in_order(array, side.ids, 0.0 if is_table else NEVER)
        parameters[name] = array.T if marian_name == OUTPUT else array
    return parameters


def _search_settings(model: Path) -> dict[str, Any]:
    """Returns the settings of the search, of a file beside the model, which may name its vocabularies."""
    configs = sorted(path.name for path in model.parent.glob("config*.yml"))
    paths = [model.parent / name for name in (f"{model.name}.{SEARCH}", SEARCH, *configs)]
    return next((untrusted.read_yaml(path) for path in paths if path.is_file()), {})


def _search_config(search: dict[str, Any], path: Path) -> dict[str, Any]:
    values = {"beam-size": 12, "normalize": 0, "max-length-factor": 3, "word-penalty": 0} | search  # Marian's defaults
    for name, largest in {"beam-size": 1000, "normalize": 100, "max-length-factor": 1000, "word-penalty": 0}.items():
        if type(values[name]) not in (int, float, bool) or not 0 <= values[name] <= largest:
            raise UserError(f"{path}: its search has {name}={values[name]!r:.60}, must be from 0 to {largest}")
    return {
        "decoding.beam_size": max(1, int(values["beam-size"])),
        "decoding.length_penalty_form": "power",
        "decoding.shrinking_beam": True,
        "decoding.length_penalty": float(values["normalize"]),
        "decoding.max_length_factor": float(values["max-length-factor"]),
        "decoding.max_extra_length": int(values["max-length-factor"]),  # Marian's lengths include end-of-sentence
        "decoding.forbid_unk": not search.get("allow-unk", False),
    }


def write(model: PortableModel, folder: Path, quantization: str | None, python: Path | None = None) -> None:
    """Writes model.npz, vocabularies and decoder.yml. Raises UserError if Marian cannot express the model."""
    model.check_expressible("marian", marian_architecture.EXPRESSIBLE)
    config = dict(model.settings)
    if config["model.norm_position"] == "pre" and config["model.decoder_self_attention"] == "attention":
        raise UserError(
            "--format=marian: cannot express model.norm_position=pre with model.decoder_self_attention=attention, "
            "whose keys and values Marian normalizes in training and not in decoding; only post, or ssru"
        )
    for width in ("d_k", "d_v"):
        if (value := config[f"model.{width}"]) not in (None, config["model.d_model"] // config["model.num_heads"]):
            raise UserError(f"--format=marian: cannot express model.{width}={value}, only d_model / num_heads")
    if config["model.num_decoder_layers"] is None:
        config["model.num_decoder_layers"] = config["model.num_layers"]
    if config["model.final_norm"] is None:
        config["model.final_norm"] = config["model.norm_position"] == "pre"
    source, target = map(marian_vocabularies.numbered, model.tokenizer.sides)
    settings = marian_architecture.from_config(config) | {"dim-vocabs": [source.size, target.size]}
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())
    arrays = {SETTINGS: np.frombuffer(f"{text}\0".encode(), np.int8)}
    for name, marian_name in marian_architecture.parameter_names(config).items():
        array, side = model.parameters.get(name), source if name.startswith("encoder") else target
        if array is None:  # a bias that the model lacks
            width = len(target.ids) if name == "output_bias" else model.parameters[f"{name[:-4]}kernel"].shape[1]
            array = np.zeros(width, np.float32)
        array = array.T if marian_name == OUTPUT else array
        if marian_name.endswith(("Wemb", OUTPUT, OUTPUT_BIAS)):
            array = _rows_of_marian(array, side, NEVER if name == "output_bias" else 0.0)
        arrays[marian_name] = array if array.ndim == 2 else array[None]
    np.savez(folder / MODEL, **arrays)
    _write_search(config, folder, source, target)


def _rows_of_marian(table: np.ndarray, side: Side, absent: float) -> np.ndarray:
    rows, ids = np.full((side.size, *table.shape[1:]), absent, np.float32), np.array(side.ids)
    rows[ids[ids != ABSENT]] = table[ids != ABSENT]
    return rows


def _write_search(config: dict[str, Any], folder: Path, source: Side, target: Side) -> None:
    is_shared = source.vocabulary.serialized == target.vocabulary.serialized
    names = ("vocab", "vocab") if is_shared else ("srcvocab", "trgvocab")
    search = {
        "relative-paths": True,
        "models": [MODEL],
        "vocabs": [marian_vocabularies.write(folder, *pair) for pair in zip(names, (source, target), strict=True)],
        "beam-size": config["decoding.beam_size"],
        "normalize": config["decoding.length_penalty"],
        "max-length-factor": max(3.0, config["decoding.max_length_factor"]),
        "allow-unk": not config["decoding.forbid_unk"],
    }
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in search.items())
    (folder / SEARCH).write_text(lines, encoding="utf-8")
