"""Import of folders of Hugging Face's MarianMTModel (OPUS-MT) and Pegasus."""

import itertools
from pathlib import Path

import numpy as np
from absl import logging

from scripts.interop import untrusted, vocabularies
from scripts.interop.hugging_face_names import (
    ACTIVATIONS,
    BIAS,
    CONFIG,
    EMBEDDINGS,
    EPSILON,
    GENERATION,
    HEAD,
    KEYS,
    LANGUAGES,
    NORM_POSITIONS,
    NOT_TAKEN,
    POSITION_TABLES,
    POSITIONS,
    SHARED,
    STOPPING,
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
from transformer.config.keys import format_value, validated_config
from transformer.support.errors import UserError, first_of
from transformer.support.special_tokens import BOS, EOS, SPECIAL

PICKLE = "pytorch_model.bin"
INDEX = "model.safetensors.index.json"  # of weights in several files
MODELS = ("source.spm", "target.spm")
LONGEST = 512  # tokens of a source, unless tokenizer_config.json has a limit


def recognises(path: Path) -> bool:
    has_config = (path / CONFIG).is_file()
    has_weights = any((path / name).is_file() for name in (WEIGHTS, INDEX, PICKLE))
    if has_config and has_weights:
        return True
    # One of the files is missing, and the reader names it. CTranslate2's converter may copy
    # vocabularies beside its model.bin.
    has_texts = (path / VOCABULARIES[0]).is_file() and (path / MODELS[0]).is_file()
    return has_texts and (has_config or has_weights) and not (path / "model.bin").exists()


def read(folder: Path) -> PortableModel:
    """Reads a folder that `save_pretrained` wrote.

    Raises UserError for another kind of model or a damaged file.
    """
    with untrusted.reading(folder):
        settings = _read_values(folder / CONFIG)
        search, texts = (
            _read_values(folder / name) if (folder / name).exists() else {}
            for name in (GENERATION, TOKENIZER)
        )
        # Each block names the file of its settings in errors.
        with untrusted.reading(folder / CONFIG):
            config = _read_architecture(settings)
        with untrusted.reading(folder / TOKENIZER):
            limits = texts.get("model_max_length", LONGEST), config["decoding.max_source_length"]
            config["decoding.max_source_length"] = min(limits)
            config |= {key: texts[name] for key, name in LANGUAGES.items() if texts.get(name)}
            validated_config(config)
        source, target = _read_vocabularies(folder, texts.get("separate_vocabs", False), settings)
        with untrusted.reading(folder / CONFIG):
            _check_start_and_end(settings, target)
        # Older folders have the settings of the search in config.json.
        search_file = folder / (GENERATION if search else CONFIG)
        with untrusted.reading(search_file):
            config |= _read_search(search or settings, search_file, target)
        arrays = _read_weights(folder)
        with untrusted.reading(folder / WEIGHTS):
            parameters = _read_tables(arrays, settings, source, target, config)
            config["model.positions"] = _read_positions(arrays)
            parameters |= _read_modules(arrays, config)
    return PortableModel(config, parameters, vocabularies.make_tokenizer(source, target))


def _read_values(path: Path) -> Settings:
    """Returns the settings in a file. As in Transformers, null means absent."""
    return {name: value for name, value in untrusted.read_json(path).items() if value is not None}


def _read_architecture(settings: Settings) -> Settings:
    model_type = settings.get("model_type")
    if model_type not in NORM_POSITIONS:
        raise UserError(f"model_type={model_type}: must be one of {', '.join(NORM_POSITIONS)}")
    activation = settings["activation_function"]
    if activation not in ACTIVATIONS:
        raise UserError(
            f"activation_function={activation}: must be one of {', '.join(ACTIVATIONS)}"
        )
    config = {
        "model.activation": ACTIVATIONS[activation],
        "model.norm_position": NORM_POSITIONS[model_type],
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


def _read_search(search: Settings, path: Path, target: Side) -> Settings:
    forced = search.get("forced_bos_token_id")
    if forced is not None:
        raise UserError(
            f"forced_bos_token_id={forced}: a token that begins each translation cannot be imported"
        )
    config = {
        "decoding.stopping": STOPPING[search.get("early_stopping", False)],
        "decoding.beam_size": search.get("num_beams", 1),
        "decoding.length_penalty": search.get("length_penalty", 1.0),
        "decoding.length_penalty_form": "power",
        # The minimum in Transformers includes the start.
        "decoding.min_length": max(0, search.get("min_length", 0) - 1),
        "decoding.no_repeat_ngram": search.get("no_repeat_ngram_size", 0),
    }
    validated_config(config)

    # Single tokens can be banned here, but not sequences.
    words = search.get("bad_words_ids", [])
    ids = itertools.chain(*(word for word in words if len(word) == 1))
    token_of = dict(enumerate(target.tokens))
    tokens = {token_of[id_] for id_ in [*ids, *search.get("suppress_tokens", [])]}
    if EOS in tokens:
        raise UserError("bans </s>, so that no translation could end")
    # The search never generates the other special tokens.
    config["decoding.banned_pieces"] = tuple(
        target.vocabulary.pieces[token] for token in sorted(tokens) if token >= SPECIAL
    )

    # Settings without a counterpart are not errors, because they may not matter.
    unused = {name: search[name] for name, off in NOT_TAKEN.items() if search.get(name, off) != off}
    if any(len(word) > 1 for word in words):
        unused["bad_words_ids"] = words
    if unused:
        described = ", ".join(f"{name}={format_value(value):.60}" for name, value in unused.items())
        logging.warning("%s: the search here does not take %s.", path, described)
    return config


def _read_weights(folder: Path) -> Arrays:
    """Reads the weights, which may be in several files that an index lists."""
    names = [WEIGHTS]
    if not (folder / WEIGHTS).exists():
        if (folder / INDEX).exists():
            with untrusted.reading(folder / INDEX):
                names = set(untrusted.read_json(folder / INDEX)["weight_map"].values())
                # An index must not lead to files elsewhere.
                if any(Path(name).name != name for name in names):
                    raise UserError("must have names of files in its folder")
        else:
            untrusted.refuse_pickles(folder)
    arrays = {}
    for name in sorted(names):
        arrays |= untrusted.read_safetensors(folder / name)
    return arrays


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
