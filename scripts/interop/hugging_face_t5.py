"""Import of T5's family in Hugging Face's layout: T5, its version 1.1, Flan-T5, mT5,
umT5 and ByT5.

The model here multiplies embeddings by sqrt(D), so its table is T5's divided by sqrt(D). Logits
that are tied to the table are then those of T5, which divides the decoder's output by sqrt(D).
"""

import re
from pathlib import Path

import numpy as np

from scripts.interop import t5_vocabulary, untrusted, vocabularies
from scripts.interop.hugging_face_folder import LONGEST, Folder, read_search, read_weights
from scripts.interop.hugging_face_names import CONFIG, TOKENIZER, WEIGHTS
from scripts.interop.hugging_face_t5_names import (
    ACTIVATIONS,
    ARCHITECTURE,
    ARCHITECTURES,
    CLASSES,
    EMBEDDINGS,
    FIXED,
    GATED_ACTIVATIONS,
    HEAD,
    KEYS,
    MODEL_TYPES,
    UNUSED,
    parameter_names,
)
from scripts.interop.portable import (
    ABSENT,
    NEVER,
    Arrays,
    PortableModel,
    Settings,
    rows_in_order,
)
from scripts.interop.vocabularies import Side
from transformer.config.keys import validated_config
from transformer.support.errors import UserError, first_of
from transformer.support.special_tokens import PAD

TASK = re.compile("translation_(.+)_to_(.+)")  # in task_specific_params


def read(folder: Folder) -> PortableModel:
    """Reads a model. Raises UserError for a damaged file, or a model that is not expressible."""
    path = folder.path
    # Each block names the file of its settings in errors.
    with untrusted.reading(path / CONFIG):
        defaults, _ = MODEL_TYPES[folder.config["model_type"]]
        settings = defaults | folder.config
        config = _read_architecture(settings)
    with untrusted.reading(path / TOKENIZER):
        # Tokenizers without a limit have a very large number.
        length = folder.max_source_length
        config["decoding.max_source_length"] = length if length < 1 << 16 else LONGEST
        validated_config(config)
    start = folder.search.get("decoder_start_token_id", settings.get("decoder_start_token_id"))
    if start is None:
        start = settings["pad_token_id"]
    side = t5_vocabulary.read(folder, settings, start)
    config["tokenizer.kind"] = vocabularies.tokenizer_kind(side.vocabulary)
    with untrusted.reading(folder.search_file):
        search = folder.search_settings
        config |= _read_search(search, folder.search_file, side)
        tasks = {}
        for name, task in settings.get("task_specific_params", {}).items():
            match = TASK.fullmatch(name)
            if match:
                task = {key: value for key, value in (task or {}).items() if value is not None}
                task_config = _read_search(search | task, folder.search_file, side)
                prefix = task.get("prefix", "").strip()
                if prefix.endswith(":"):
                    task_config["data.source_tag"] = prefix
                validated_config(config | task_config)
                tasks["-".join(match.groups())] = task_config

    arrays = read_weights(path)
    with untrusted.reading(path / WEIGHTS):
        parameters = _read_modules(arrays, config)
        parameters |= _read_tables(arrays, settings, side, config)
    return PortableModel(
        config, parameters, vocabularies.make_tokenizer(side, side), directions=tasks
    )


def _read_architecture(settings: Settings) -> Settings:
    for name in settings.get("architectures", []):
        if not name.endswith(ARCHITECTURES):
            raise UserError(
                f"architectures={name}: must be a class with encoder, decoder and logits, such as "
                f"{CLASSES['t5'][1]}"
            )
    for name, value in FIXED.items():
        if settings.get(name, value) != value:
            raise UserError(f"{name}={settings[name]}: must be {value}")
    activation = settings["feed_forward_proj"]
    if activation not in ACTIVATIONS:
        raise UserError(f"feed_forward_proj={activation}: must be one of {', '.join(ACTIVATIONS)}")
    kinds = [kind for kind, (name, _) in CLASSES.items() if name == settings["model_type"]]
    config = ARCHITECTURE | {
        "model.activation": ACTIVATIONS[activation],
        "model.positions": kinds[0] if kinds else "t5",
        "model.share_embeddings": "none",  # until the tables are read
    }
    config |= {key: settings.get(name) for key, name in KEYS.items()}
    validated_config(config)
    return config


def _read_search(search: Settings, path: Path, target: Side) -> Settings:
    """Returns the search, with the limit of lengths if there is one."""
    rest = {name: value for name, value in search.items() if name != "max_length"}
    config = read_search(rest, path, target)
    if "max_length" in search:
        # The limit in Transformers includes the start and the end.
        config["decoding.max_length_factor"] = 0.0
        config["decoding.max_extra_length"] = max(0, search["max_length"] - 2)
    return config


def _read_modules(arrays: Arrays, config: Settings) -> Arrays:
    """Takes all parameters except tables."""
    # The first configuration of umT5 names another activation than its weights have.
    is_gated = "encoder.block.0.layer.1.DenseReluDense.wi_1.weight" in arrays
    if is_gated and config["model.activation"] not in GATED_ACTIVATIONS:
        config["model.activation"] = GATED_ACTIVATIONS[0]
    first = "encoder.block.0.layer.0.SelfAttention.q.weight"
    d_kv = config["model.d_k"]
    num_heads = config["model.num_heads"]
    if len(arrays[first]) != d_kv * num_heads:
        raise UserError(
            f"{first} has {len(arrays[first])} rows, but {CONFIG} has d_kv={d_kv} and "
            f"num_heads={num_heads}"
        )
    parameters = {}
    for name, foreign in parameter_names(config):
        array = np.asarray(arrays.pop(foreign), np.float32)
        parameters[name] = array.T if name.endswith("kernel") else array
    unused = sorted(arrays.keys() - {*EMBEDDINGS, HEAD, UNUSED})
    if unused:
        raise UserError(f"has tensors that the model of {CONFIG} lacks ({first_of(unused, 3)})")
    return parameters


def _read_tables(arrays: Arrays, settings: Settings, side: Side, config: Settings) -> Arrays:
    """Returns the embeddings and the parameters of the logits.

    Adds the settings that depend on the tables to `config`.
    """
    name, *copies = [name for name in EMBEDDINGS if name in arrays] or EMBEDDINGS[:1]
    shared = arrays[name]
    if any(not np.array_equal(arrays[copy], shared) for copy in copies):
        raise UserError(f"{copies[0]} differs from {name}; both sides must share a table")
    head = arrays.get(HEAD, shared)
    d_model = settings["d_model"]
    for table in (shared, head):
        if table.shape != (side.size, d_model):
            raise UserError(
                f"has a table of shape {table.shape}, but {CONFIG} has vocab_size={side.size} and "
                f"d_model={d_model}"
            )

    scale = np.float32(d_model**0.5)
    tables = {"decoder.embedding.table": rows_in_order(shared, side.ids) / scale}
    _, flags = MODEL_TYPES[settings["model_type"]]
    is_scaled = next((settings[flag] for flag in flags if flag in settings), bool(flags))
    is_tied = is_scaled and np.array_equal(head, shared)
    config["model.share_embeddings"] = "all" if is_tied else "inputs"
    if not is_tied:
        projection = rows_in_order(head, side.ids).T
        tables["projection.kernel"] = projection / scale if is_scaled else projection
    # A token that T5 lacks must not have a probability.
    config["model.output_bias"] = side.ids[PAD] == ABSENT
    if config["model.output_bias"]:
        tables["output_bias"] = np.where(np.array(side.ids) == ABSENT, np.float32(NEVER), 0)
    return tables
