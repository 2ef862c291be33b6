"""Import of Hugging Face's MarianMTModel (OPUS-MT) and Pegasus."""

from pathlib import Path

import numpy as np

from scripts.interop import untrusted, vocabularies
from scripts.interop.hugging_face_folder import Folder, read_search, read_weights
from scripts.interop.hugging_face_names import (
    ACTIVATIONS,
    BIAS,
    CONFIG,
    EMBEDDINGS,
    EPSILON,
    HEAD,
    KEYS,
    LANGUAGES,
    NORM_POSITIONS,
    POSITION_TABLES,
    POSITIONS,
    SHARED,
    TOKENIZER,
    VOCABULARIES,
    WEIGHTS,
    module_names,
)
from scripts.interop.portable import (
    NEVER,
    Arrays,
    PortableModel,
    Settings,
    fitting_positions,
    rows_in_order,
)
from scripts.interop.vocabularies import Side
from transformer.config.keys import validated_config
from transformer.support.errors import UserError, first_of
from transformer.support.special_tokens import BOS, EOS

MODELS = ("source.spm", "target.spm")


def read(folder: Folder) -> PortableModel:
    """Reads a model. Raises UserError for a damaged file."""
    path, settings, _, texts = folder
    # Each block names the file of its settings in errors.
    with untrusted.reading(path / CONFIG):
        config = _read_architecture(settings)
    with untrusted.reading(path / TOKENIZER):
        limits = folder.max_source_length, config["decoding.max_source_length"]
        config["decoding.max_source_length"] = min(limits)
        config |= {key: texts[name] for key, name in LANGUAGES.items() if texts.get(name)}
        validated_config(config)
    source, target = _read_vocabularies(path, texts.get("separate_vocabs", False), settings)
    with untrusted.reading(path / CONFIG):
        _check_start_and_end(settings, target)
    with untrusted.reading(folder.search_file):
        config |= read_search(folder.search_settings, folder.search_file, target)
    arrays = read_weights(path)
    with untrusted.reading(path / WEIGHTS):
        parameters = _read_tables(arrays, settings, source, target, config)
        config["model.positions"] = _read_positions(arrays)
        parameters |= _read_modules(arrays, config)
    return PortableModel(config, parameters, vocabularies.make_tokenizer(source, target))


def _read_architecture(settings: Settings) -> Settings:
    activation = settings["activation_function"]
    if activation not in ACTIVATIONS:
        raise UserError(
            f"activation_function={activation}: must be one of {', '.join(ACTIVATIONS)}"
        )
    config = {
        "model.activation": ACTIVATIONS[activation],
        "model.norm_position": NORM_POSITIONS[settings["model_type"]],
        "model.attention_bias": True,
        "model.layer_norm_epsilon": EPSILON,
        "model.share_embeddings": "none",  # until the tables are read
        "tokenizer.kind": "pieces",
        "decoding.max_source_length": settings["max_position_embeddings"],
    }
    for key, names in KEYS.items():
        config[key] = settings[names[0]]
        if any(settings[name] != config[key] for name in names):
            raise UserError(f"{' and '.join(names)} differ; both stacks must have the same value")
    validated_config(config)
    return config


def _read_vocabularies(folder: Path, is_separate: bool, settings: Settings) -> tuple[Side, Side]:
    models = [untrusted.read_bytes(folder / name) for name in MODELS]
    start = settings.get("decoder_start_token_id")
    sides = []
    for name in VOCABULARIES[: 2 if is_separate else 1]:
        with untrusted.reading(folder / name):
            ids = untrusted.read_json(folder / name)
            pieces = vocabularies.pieces_by_id(ids)
            pad, unk, eos = (ids[piece] for piece in ("<pad>", "<unk>", "</s>"))
            # Without the piece <s>, BOS is the token from which decoding starts.
            bos = ids.get("<s>", start if start in ids.values() else pad)
            sides.append(vocabularies.piece_side(pieces, (pad, unk, bos, eos), models))
    return sides[0], sides[-1]


def _check_start_and_end(settings: Settings, target: Side) -> None:
    start = settings["decoder_start_token_id"]
    if start not in range(target.size):
        raise UserError(
            f"decoder_start_token_id={start}: must be the id of one of {target.size} target tokens"
        )
    eos = target.ids[EOS]
    end = settings.get("eos_token_id", eos)
    if end != eos:
        raise UserError(f"eos_token_id={end}: must be {eos}, the id of </s>")


def _read_rows(arrays: Arrays, name: str, side: Side, width: int) -> np.ndarray:
    table = arrays[name].T if name == BIAS else arrays[name]
    if table.shape != (side.size, width):
        raise UserError(f"{name} has shape {arrays[name].shape}, but there are {side.size} pieces")
    return rows_in_order(table, side.ids)


def _read_tables(
    arrays: Arrays, settings: Settings, source: Side, target: Side, config: Settings
) -> Arrays:
    """Returns the embeddings and the parameters of the logits.

    Adds the settings that depend on the tables to `config`. As in Transformers, a table in the file
    replaces the table to which the settings tie it.
    """
    d_model = settings["d_model"]
    source_table, target_table = (
        _read_rows(arrays, name if name in arrays else SHARED, side, d_model)
        for name, side in zip(EMBEDDINGS, (source, target), strict=True)
    )
    # The logits use the target table, unless the file has another one.
    head = target_table
    if HEAD in arrays or not settings.get("tie_word_embeddings", True):
        head = _read_rows(arrays, HEAD, target, d_model)
    bias = np.zeros(len(head), np.float32)
    if BIAS in arrays:
        bias = _read_rows(arrays, BIAS, target, 1)[:, 0]

    # The decoder starts with BOS, or with a vector of zeros.
    start = settings["decoder_start_token_id"]
    ids = target.ids
    bos = ids[BOS]
    if ids.count(bos) > 1:
        bias[BOS] = NEVER  # BOS is a copy of another token, but must not have its probability
    starts_from_zero = start in ids and not target_table[ids.index(start)].any()
    if start != bos and not starts_from_zero:
        raise UserError(
            f"decoder_start_token_id={start}: must be <s>, or a token whose vector is zero"
        )
    if not settings.get("scale_embedding", False):
        # The model here always multiplies embeddings by sqrt(d_model).
        scale = np.float32(d_model**0.5)
        source_table = source_table / scale
        target_table = target_table / scale
    if starts_from_zero and start == bos:
        # The decoder does not read this vector, and the logits may be tied to it.
        target_table[BOS] = head[BOS]

    share = "none"
    if np.array_equal(target_table, head):
        is_same = source.ids == ids and np.array_equal(source_table, target_table)
        share = "all" if is_same else "target"
    config["model.share_embeddings"] = share
    config["model.decoder_start"] = "zero" if starts_from_zero else "bos"
    config["model.output_bias"] = bool(bias.any())

    tables = {"decoder.embedding.table": target_table}
    if share != "all":
        tables["encoder.embedding.table"] = source_table
    if share == "none":
        tables["projection.kernel"] = head.T
    if config["model.output_bias"]:
        tables["output_bias"] = bias
    return tables


def _read_positions(arrays: Arrays) -> str:
    # Without tables, Transformers computes the first kind.
    tables = [arrays[name] for name in POSITION_TABLES if name in arrays]
    kind = fitting_positions(POSITIONS, tables)
    if kind is None:
        raise UserError(
            f"{POSITION_TABLES[0]}: only positions that are sines and cosines can be imported"
        )
    return kind


def _read_modules(arrays: Arrays, config: Settings) -> Arrays:
    """Takes the linear maps and norms. Raises UserError if other tensors than tables are left."""
    parameters = {}
    for module, foreign in module_names(config):
        weight = np.asarray(arrays.pop(f"{foreign}.weight"), np.float32)
        if module.endswith("norm"):
            parameters[f"{module}.scale"] = weight
        else:
            parameters[f"{module}.kernel"] = weight.T
        parameters[f"{module}.bias"] = np.asarray(arrays.pop(f"{foreign}.bias"), np.float32)
    unused = sorted(arrays.keys() - {SHARED, HEAD, BIAS, *EMBEDDINGS, *POSITION_TABLES})
    if unused:
        raise UserError(f"has tensors that the model of {CONFIG} lacks ({first_of(unused, 3)})")
    return parameters
