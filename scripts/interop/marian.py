"""Marian's .npz models with their vocabularies, in and out."""

import json
from pathlib import Path

import numpy as np
from absl import logging

from scripts.interop import marian_architecture, untrusted, vocabularies
from scripts.interop.marian_architecture import OUTPUT, OUTPUT_BIAS
from scripts.interop.portable import NEVER, Arrays, PortableModel, Settings, rows_in_order
from scripts.interop.vocabularies import Side
from transformer.support import files
from transformer.support.errors import UserError, first_of

# This array has the settings of the architecture: YAML that ends with NUL.
SETTINGS = "special:model.yml"
MODEL = "model.npz"
SEARCH = "decoder.yml"
SEARCH_DEFAULTS = {"beam-size": 12, "normalize": 0, "max-length-factor": 3, "word-penalty": 0}
PER_TOKEN = ("Wemb", OUTPUT, OUTPUT_BIAS)  # ends of names of arrays with a row for each token


def read(path: Path) -> PortableModel:
    """Reads a .npz file, or the only one in a folder.

    Raises UserError if the model cannot be expressed here.
    """
    file = only_model(path, models_in(path))
    return assemble(file, untrusted.read_npz(file), SEARCH_DEFAULTS)


def only_model(path: Path, models: list[Path]) -> Path:
    """Returns the only model in a path. Raises UserError if there is none or more than one."""
    if len(models) != 1:
        names = first_of([model.name for model in models], 3, ", ")
        raise UserError(f"{path}: has {len(models)} models ({names}); name the file of one")
    return models[0]


def models_in(path: Path) -> list[Path]:
    """Returns the model files in a path, without the states of Marian's optimizer."""
    paths = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    return [
        path for path in paths if path.suffix == ".npz" and not path.name.endswith(".optimizer.npz")
    ]


def assemble(path: Path, arrays: Arrays, default_search: Settings) -> PortableModel:
    """Returns the model of the arrays in one of Marian's files.

    The search settings are in a file beside it, or else `default_search`. Raises UserError if the
    model cannot be expressed here.
    """
    # The first of these files has the settings of the search.
    configs = sorted(file.name for file in path.parent.glob("config*.yml"))
    candidates = [path.parent / name for name in (f"{path.name}.{SEARCH}", SEARCH, *configs)]
    search = next((untrusted.read_yaml(file) for file in candidates if file.is_file()), {})
    if not search:
        search = default_search
        described = ", ".join(f"{name} {value}" for name, value in search.items())
        logging.info(
            "%s: no %s and no config*.yml is beside it; the search has %s.", path, SEARCH, described
        )

    source, target = vocabularies.read_marian(path.parent, search.get("vocabs"))
    with untrusted.reading(path):
        text = arrays.pop(SETTINGS).tobytes().split(b"\0")[0].decode()
        settings = untrusted.parse_yaml(text, path)
        config = marian_architecture.to_config(settings, len(arrays)) | _search_config(search)
        config["tokenizer.kind"] = vocabularies.tokenizer_kind(source.vocabulary)
        parameters = _parameters(arrays, config, source, target)
    return PortableModel(config, parameters, vocabularies.make_tokenizer(source, target))


def _parameters(arrays: Arrays, config: Settings, source: Side, target: Side) -> Arrays:
    names = marian_architecture.parameter_names(config)
    differences = sorted(set(names.values()) ^ arrays.keys())
    if differences:
        described = [f"{'has' if name in arrays else 'lacks'} {name}" for name in differences]
        raise UserError(f"has other parameters than its settings say ({first_of(described, 3)})")

    parameters = {}
    for name, marian_name in names.items():
        array = arrays[marian_name].astype(np.float32)
        is_matrix = name.endswith(("kernel", "table"))
        if array.ndim != 2 or not (is_matrix or len(array) == 1):
            raise UserError(
                f"{marian_name} has the shape {array.shape}; it must be a matrix, or one row"
            )

        # Marian stores vectors as matrices with one row.
        array = array if is_matrix else array[0]
        if marian_name.endswith(PER_TOKEN):
            side = source if name.startswith("encoder") else target
            if len(array) != side.size:
                raise UserError(
                    f"{marian_name} has {len(array)} tokens, and the vocabulary {side.size}"
                )
            array = rows_in_order(array, side.ids, 0.0 if is_matrix else NEVER)
        parameters[name] = array.T if marian_name == OUTPUT else array
    return parameters


def _search_config(search: Settings) -> Settings:
    values = SEARCH_DEFAULTS | search
    if values["word-penalty"]:
        raise UserError(f"its search has word-penalty={values['word-penalty']!r:.60}, must be 0")
    return {
        "decoding.beam_size": max(1, int(values["beam-size"])),
        "decoding.length_penalty_form": "power",
        "decoding.shrinking_beam": True,
        "decoding.stopping": "ended",
        "decoding.length_penalty": float(values["normalize"]),
        "decoding.max_length_factor": float(values["max-length-factor"]),
        # Marian's lengths include end-of-sentence.
        "decoding.max_extra_length": int(values["max-length-factor"]),
        "decoding.forbid_unk": not search.get("allow-unk", False),
    }


def write(model: PortableModel, folder: Path, *_: object) -> None:
    """Writes model.npz, vocabularies and decoder.yml.

    Raises UserError if Marian cannot express the model.
    """
    config = architecture_of(model)
    model.check_expressible("marian", marian_architecture.expressible(config))
    sides = [vocabularies.marian_side(side) for side in model.tokenizer.sides]
    settings = marian_architecture.from_config(config)
    settings["dim-vocabs"] = [side.size for side in sides]
    arrays = {SETTINGS: np.frombuffer(f"{to_yaml(settings)}\0".encode(), np.int8)}
    np.savez(folder / MODEL, **arrays, **to_arrays(model, config, *sides))

    # Marian reads a shared vocabulary once for each side.
    names = ["vocab.spm"] * 2 if model.tokenizer.is_shared else ["srcvocab.spm", "trgvocab.spm"]
    for name, side in zip(names, sides, strict=True):
        files.write_bytes(folder / name, side.vocabulary.serialized)

    search = {
        "relative-paths": True,
        "models": [MODEL],
        "vocabs": names,
        "beam-size": config["decoding.beam_size"],
        "normalize": config["decoding.length_penalty"],
        "max-length-factor": max(3.0, config["decoding.max_length_factor"]),
        "allow-unk": not config["decoding.forbid_unk"],
    }
    files.write_text(folder / SEARCH, to_yaml(search))


def architecture_of(model: PortableModel) -> Settings:
    """Returns the settings of a model, without None where Marian has a number."""
    config = model.settings
    config["model.num_decoder_layers"] = (
        config["model.num_decoder_layers"] or config["model.num_layers"]
    )
    config["model.final_norm"] = "decoder.final_norm.scale" in model.parameters
    return config


def to_arrays(model: PortableModel, config: Settings, source: Side, target: Side) -> Arrays:
    """Returns the arrays of a model by Marian's names. `config` is that of `architecture_of`."""
    arrays = {}
    for name, marian_name in marian_architecture.parameter_names(config).items():
        # Marian has a bias in each linear map, which the model here may lack.
        if name in model.parameters:
            array = model.parameters[name]
        elif name == "output_bias":
            array = np.zeros(len(target.ids), np.float32)
        else:
            kernel = model.parameters[name.removesuffix("bias") + "kernel"]
            array = np.zeros(kernel.shape[1], np.float32)

        # Marian's output table has a row for each token, the kernel here a column.
        array = array.T if marian_name == OUTPUT else array
        if marian_name.endswith(PER_TOKEN):
            side = source if name.startswith("encoder") else target
            array = rows_in_order(array, side.tokens, NEVER if name == "output_bias" else 0.0)
        arrays[marian_name] = array if array.ndim == 2 else array[None]
    return arrays


def to_yaml(settings: Settings) -> str:
    """Returns the settings as YAML, with a line for each."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())
