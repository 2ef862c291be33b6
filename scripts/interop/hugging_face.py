"""Hugging Face's MarianMTModel, the class of all OPUS-MT models: its names, and how a folder is
read.

PegasusForConditionalGeneration has the same layers with their norms first. Both classes have biases
everywhere, LayerNorm's epsilon 1e-5, and positions with all sines before all cosines, unless the
weights have a table of positions.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import logging

from scripts.interop import untrusted, vocabularies
from scripts.interop.portable import (
    NEVER,
    Arrays,
    PortableModel,
    Settings,
    fitting_positions,
    rows_in_order,
)
from scripts.interop.vocabularies import Side
from transformer.config.keys import checked, show
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.support.errors import UserError, first_of
from transformer.support.special_tokens import BOS, EOS, SPECIAL

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"
INDEX = "model.safetensors.index.json"  # of weights in several files
VOCABULARIES = ("vocab.json", "target_vocab.json")
MODELS = ("source.spm", "target.spm")
CLASSES = {
    "post": ("marian", "MarianMTModel"),
    "pre": ("pegasus", "PegasusForConditionalGeneration"),
}
NORM_POSITIONS = {model_type: norm_position for norm_position, (model_type, _) in CLASSES.items()}
EPSILON = 1e-5  # of LayerNorm
LONGEST = 512  # tokens of a source, unless tokenizer_config.json has a limit
KEYS = {  # and the keys of config.json that have the same value
    "model.num_layers": ("encoder_layers",),
    "model.num_decoder_layers": ("decoder_layers",),
    "model.d_model": ("d_model",),
    "model.d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "model.num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
    **{f"model.{name}": (name,) for name in ("dropout", "attention_dropout", "activation_dropout")},
}
# Settings of the search that have no counterpart here, with the values that turn them off. Those of
# sampling matter only with do_sample.
NOT_TAKEN = {
    "max_length": 20,
    "do_sample": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "renormalize_logits": False,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    **dict.fromkeys(
        (
            "max_new_tokens",
            "min_new_tokens",
            "max_time",
            "stop_strings",
            "begin_suppress_tokens",
            "force_words_ids",
            "forced_decoder_ids",
            "sequence_bias",
            "exponential_decay_length_penalty",
            "guidance_scale",
            "penalty_alpha",
            "constraints",
        )
    ),
}
STOPPING = {True: "ended", False: "current", "never": "bound"}  # by early_stopping
LANGUAGES = {"data.source_language": "source_lang", "data.target_language": "target_lang"}
ACTIVATIONS = {
    "silu": "swish",
    "swish": "swish",
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
}
POSITIONS = ("sinusoidal_concatenated", "sinusoidal_marian")  # the classes compute the first
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
SHARED = "model.shared.weight"
HEAD = "lm_head.weight"
BIAS = "final_logits_bias"
EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
POSITION_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def recognises(path: Path) -> bool:
    has_config, *has_texts = (
        (path / name).is_file() for name in (CONFIG, VOCABULARIES[0], MODELS[0])
    )
    has_weights = any((path / name).is_file() for name in (WEIGHTS, INDEX, PICKLE))
    if has_config and has_weights:
        return True
    # A file is missing, which the reader names. CTranslate2's converter may copy vocabularies
    # beside its model.bin.
    return all(has_texts) and (has_config or has_weights) and not (path / "model.bin").exists()


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
        search_file = folder / (GENERATION if search else CONFIG)
        search = search or settings
        with untrusted.reading(folder / CONFIG):
            config = _read_architecture(settings)
        with untrusted.reading(search_file):
            config |= _read_search(search)
        with untrusted.reading(folder / TOKENIZER):
            longest = min(
                texts.get("model_max_length", LONGEST), config["decoding.max_source_length"]
            )
            config |= {key: texts[name] for key, name in LANGUAGES.items() if texts.get(name)}
            config["decoding.max_source_length"] = longest
            checked(config)
        source, target = _read_vocabularies(folder, texts.get("separate_vocabs", False), settings)
        with untrusted.reading(folder / CONFIG):
            start = settings["decoder_start_token_id"]
            end = target.ids[EOS]
            if start not in range(target.size):
                raise UserError(
                    f"decoder_start_token_id={start}: must be the id of one of {target.size} target tokens"
                )
            if settings.get("eos_token_id", end) != end:
                raise UserError(
                    f"eos_token_id={settings['eos_token_id']}: must be {end}, the id of </s>"
                )
        with untrusted.reading(search_file):
            config["decoding.banned_pieces"] = _banned_pieces(search, target)
            not_taken = {
                name: search[name]
                for name, off in NOT_TAKEN.items()
                if search.get(name, off) != off
            }
            if any(len(word) > 1 for word in search.get("bad_words_ids", [])):
                not_taken["bad_words_ids"] = search["bad_words_ids"]
        if not_taken:
            listed = ", ".join(f"{name}={show(value):.60}" for name, value in not_taken.items())
            logging.warning("%s: the search here does not take %s.", search_file, listed)
        arrays = _read_weights(folder)
        with untrusted.reading(folder / WEIGHTS):
            parameters = _read_tables(arrays, settings, (source, target), config)
            taken = {SHARED, HEAD, BIAS, *EMBEDDINGS, *POSITION_TABLES}
            for module, foreign in modules(config):
                weight, bias = (
                    np.asarray(arrays[f"{foreign}.{leaf}"], np.float32)
                    for leaf in ("weight", "bias")
                )
                parameters |= (
                    {f"{module}.scale": weight}
                    if module.endswith("norm")
                    else {f"{module}.kernel": weight.T}
                )
                parameters[f"{module}.bias"] = bias
                taken |= {f"{foreign}.weight", f"{foreign}.bias"}
            if unused := sorted(arrays.keys() - taken):
                raise UserError(
                    f"has tensors that the model of {CONFIG} lacks ({first_of(unused, 3)})"
                )
    return PortableModel(config, parameters, Tokenizer(source.vocabulary, target.vocabulary))


def _read_values(path: Path) -> Settings:
    """Returns the settings in a file.

    As in Transformers, a setting that is null counts as absent.
    """
    return {name: value for name, value in untrusted.read_json(path).items() if value is not None}


def _read_weights(folder: Path) -> Arrays:
    """Reads the weights, which may be in several files that an index lists."""
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        if not (folder / WEIGHTS).exists():
            untrusted.refuse_pickles(folder)
        return untrusted.read_safetensors(folder / WEIGHTS)
    with untrusted.reading(folder / INDEX):
        names = set(untrusted.read_json(folder / INDEX)["weight_map"].values())
        if any(Path(name).name != name for name in names):
            raise UserError("must have names of files in its folder")
    arrays = {}
    for name in sorted(names):
        arrays |= untrusted.read_safetensors(folder / name)
    return arrays


def modules(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields the names, here and in Transformers, of the linear maps and norms of both stacks."""
    depths = (
        settings["model.num_layers"],
        settings["model.num_decoder_layers"] or settings["model.num_layers"],
    )
    for stack, depth, attentions in (
        ("encoder", depths[0], {"self_attention": "self_attn"}),
        ("decoder", depths[1], {"self_attention": "self_attn", "cross_attention": "encoder_attn"}),
    ):
        for layer in (f"{stack}.layers.{index}" for index in range(depth)):
            for attention, foreign in attentions.items():
                for projection, foreign_projection in PROJECTIONS.items():
                    yield (
                        f"{layer}.{attention}.{projection}",
                        f"model.{layer}.{foreign}.{foreign_projection}",
                    )
                yield f"{layer}.{attention}_connection.norm", f"model.{layer}.{foreign}_layer_norm"
            yield f"{layer}.feed_forward.inner", f"model.{layer}.fc1"
            yield f"{layer}.feed_forward.outer", f"model.{layer}.fc2"
            yield f"{layer}.feed_forward_connection.norm", f"model.{layer}.final_layer_norm"
        if settings["model.norm_position"] == "pre":
            yield f"{stack}.final_norm", f"model.{stack}.layer_norm"


def _read_architecture(settings: Settings) -> Settings:
    if (model_type := settings.get("model_type")) not in NORM_POSITIONS:
        raise UserError(f"model_type={model_type}: must be one of {', '.join(NORM_POSITIONS)}")
    if (activation := settings["activation_function"]) not in ACTIVATIONS:
        raise UserError(
            f"activation_function={activation}: must be one of {', '.join(ACTIVATIONS)}"
        )
    for names in KEYS.values():
        if any(settings[name] != settings[names[0]] for name in names):
            raise UserError(f"{' and '.join(names)} differ; both stacks must have the same value")
    config = {key: settings[names[0]] for key, names in KEYS.items()} | {
        "model.activation": ACTIVATIONS[activation],
        "model.norm_position": NORM_POSITIONS[model_type],
        "model.attention_bias": True,
        "model.layer_norm_epsilon": EPSILON,
        "model.share_embeddings": "none",  # until the tables are read
        "tokenizer.kind": "pieces",
        "decoding.max_source_length": settings["max_position_embeddings"],
    }
    checked(config)
    return config


def _read_search(search: Settings) -> Settings:
    if (forced := search.get("forced_bos_token_id")) is not None:
        raise UserError(
            f"forced_bos_token_id={forced}: a token that begins each translation cannot be imported"
        )
    config = {
        "decoding.stopping": STOPPING[search.get("early_stopping", False)],
        "decoding.beam_size": search.get("num_beams", 1),
        "decoding.length_penalty": search.get("length_penalty", 1.0),
        "decoding.length_penalty_form": "power",
        "decoding.min_length": max(0, search.get("min_length", 0) - 1),  # there the start counts
        "decoding.no_repeat_ngram": search.get("no_repeat_ngram_size", 0),
    }
    checked(config)
    return config


def _banned_pieces(search: Settings, target: Side) -> tuple[str, ...]:
    """Returns the pieces that are never generated; padding, <s> and <unk> are not anyway."""
    words = [word for word in search.get("bad_words_ids", []) if len(word) == 1]
    token_of = dict(enumerate(target.tokens))
    tokens = {
        token_of[id_] for id_ in [*itertools.chain(*words), *search.get("suppress_tokens", [])]
    }
    if EOS in tokens:
        raise UserError("bans </s>, so that no translation could end")
    return tuple(target.vocabulary.pieces[token] for token in sorted(tokens) if token >= SPECIAL)


def _read_vocabularies(folder: Path, is_separate: bool, settings: Settings) -> tuple[Side, Side]:
    """Reads the vocabularies of source and target.

    BOS has the id of the piece <s>, or else of the token from which decoding starts.
    """
    models = [untrusted.read_bytes(folder / name) for name in MODELS]
    start = settings.get("decoder_start_token_id")
    sides = []
    for name in VOCABULARIES[: 2 if is_separate else 1]:
        ids = untrusted.read_json(folder / name)
        with untrusted.reading(folder / name):
            if any(type(id_) is not int for id_ in ids.values()) or sorted(ids.values()) != list(
                range(len(ids))
            ):
                raise UserError(
                    f"the ids of its {len(ids)} pieces must be the integers 0 to {len(ids) - 1}"
                )
            pad, unk, eos = (ids[piece] for piece in ("<pad>", "<unk>", "</s>"))
            bos = ids.get("<s>", start if start in ids.values() else pad)
        sides.append(
            vocabularies.piece_side(sorted(ids, key=ids.__getitem__), (pad, unk, bos, eos), models)
        )
    return vocabularies.pair(sides[0], sides[-1])


def _read_tables(
    arrays: Arrays, settings: Settings, sides: tuple[Side, Side], config: Settings
) -> Arrays:
    """Returns the embeddings and the parameters of the logits, and adds to `config` what they
    decide.

    Like Transformers, it takes a table that the file has even if the settings tie it to another
    one.
    """

    def rows(name: str, side: int, width: int = settings["d_model"]) -> np.ndarray:
        table = arrays[name].T if name == BIAS else arrays[name]
        if table.shape != (sides[side].size, width):
            raise UserError(
                f"{name} has shape {arrays[name].shape}, but there are {sides[side].size} pieces"
            )
        return rows_in_order(table, sides[side].ids)

    source, target = (
        rows(name if name in arrays else SHARED, side) for side, name in enumerate(EMBEDDINGS)
    )
    head = (
        target
        if HEAD not in arrays and settings.get("tie_word_embeddings", True)
        else rows(HEAD, 1)
    )
    bias = rows(BIAS, 1, width=1)[:, 0] if BIAS in arrays else np.zeros(len(target), np.float32)
    start = settings["decoder_start_token_id"]
    ids = sides[1].ids
    bos = ids[BOS]
    if ids.count(bos) > 1:
        bias[BOS] = NEVER  # its row is a copy of another token's
    starts_from_zero = start in ids and not target[ids.index(start)].any()
    if start != bos and not starts_from_zero:
        raise UserError(
            f"decoder_start_token_id={start}: must be <s>, or a token whose vector is zero"
        )
    if not settings.get("scale_embedding", False):
        source, target = (
            table / np.float32(settings["d_model"] ** 0.5) for table in (source, target)
        )
    if starts_from_zero and start == bos:
        # the decoder does not read this vector, and the logits may be tied to it
        target[BOS] = head[BOS]
    is_tied = np.array_equal(target, head)
    is_one_table = is_tied and sides[0].ids == ids and np.array_equal(source, target)
    config["model.positions"] = fitting_positions(
        POSITIONS, [arrays[x] for x in POSITION_TABLES if x in arrays]
    )
    if config["model.positions"] is None:
        raise UserError(
            f"{POSITION_TABLES[0]}: only positions that are sines and cosines can be imported"
        )
    config["model.share_embeddings"] = "all" if is_one_table else "target" if is_tied else "none"
    config["model.decoder_start"] = "zero" if starts_from_zero else "bos"
    config["model.output_bias"] = bool(bias.any())
    tables = {"decoder.embedding.table": target}
    tables |= {} if is_one_table else {"encoder.embedding.table": source}
    tables |= {} if is_tied else {"projection.kernel": head.T}
    return tables | ({"output_bias": bias} if bias.any() else {})
