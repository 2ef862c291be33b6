"""Export of a model as a folder that Hugging Face's `from_pretrained` loads.

The class is MarianMTModel, or Pegasus for models with pre-norm.
"""

import re
from pathlib import Path

import numpy as np
from absl import logging

from scripts.interop import hugging_face_names as names
from scripts.interop import vocabularies
from scripts.interop.hugging_face_folder import search_settings, write_weights
from scripts.interop.portable import COMMON, NEVER, Arrays, PortableModel, Settings, sinusoids
from transformer.config.keys import freeze
from transformer.config.types import output_limit
from transformer.data.tokenizers.vocabulary import PieceVocabulary
from transformer.support import files
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL_PIECES

FORMAT = "huggingface"
# A language token of MarianTokenizer.
TAG = re.compile(">>.+<<")
ACTIVATIONS = {ours: foreign for foreign, ours in names.ACTIVATIONS.items()}
# The ids of the special tokens are their ids here.
TOKENS = {
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "forced_eos_token_id": EOS,
    "decoder_start_token_id": BOS,
}


def write(model: PortableModel, folder: Path, quantization: str | None, *_: object) -> None:
    """Writes the model into a folder.

    Raises UserError, with the setting, for a model that no class can express.
    """
    settings = model.settings
    _check_expressible(model, settings)
    longest = settings["decoding.max_source_length"]

    # The longest output, with BOS and EOS.
    max_length = output_limit(longest, freeze(settings).decoding) + 2
    max_positions = max(max_length, longest)

    arrays = _layers(model.parameters, settings)
    arrays |= _tables(model.parameters, settings, max_positions)

    dtype = write_weights(arrays, folder, quantization)

    model_type, architecture = names.CLASSES[settings["model.norm_position"]]
    source_size, target_size = model.tokenizer.vocab_sizes

    # The three files of settings: config.json, generation_config.json and tokenizer_config.json.
    config = {name: settings[key] for key, foreign in names.KEYS.items() for name in foreign}
    config |= {
        "architectures": [architecture],
        "model_type": model_type,
        "is_encoder_decoder": True,
        "dtype": dtype,
        "vocab_size": source_size,
        "decoder_vocab_size": target_size,
        "decoder_layers": settings["model.num_decoder_layers"] or settings["model.num_layers"],
        "activation_function": ACTIVATIONS[settings["model.activation"]],
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": names.SHARED in arrays,
        "tie_word_embeddings": names.HEAD not in arrays,
        "max_position_embeddings": max_positions,
    }

    texts = {name: settings[key] for key, name in names.LANGUAGES.items()}
    texts |= {
        "tokenizer_class": "MarianTokenizer",
        "bos_token": SPECIAL_PIECES[BOS],  # or decoded texts would begin with it
        "separate_vocabs": not settings["tokenizer.shared"],
        "model_max_length": longest,
    }

    search = search_settings(model, max_length, range(model.tokenizer.target.size))
    files.write_json(folder / names.CONFIG, config | TOKENS)
    files.write_json(folder / names.GENERATION, search | TOKENS)
    files.write_json(folder / names.TOKENIZER, texts)
    vocabularies.write_segmenters(folder, model.tokenizer)

    # A shared vocabulary has one file.
    sides = model.tokenizer.sides[:1] if settings["tokenizer.shared"] else model.tokenizer.sides
    for name, vocabulary in zip(names.VOCABULARIES, sides, strict=False):
        ids = {piece: token for token, piece in enumerate(vocabulary.pieces)}
        files.write_json(folder / name, ids)


def _check_expressible(model: PortableModel, settings: Settings) -> None:
    # Pegasus has a shared vocabulary and final norms, MarianMTModel has no final norms.
    head_width = settings["model.d_model"] / settings["model.num_heads"]
    is_pre = settings["model.norm_position"] == "pre"
    expressible = COMMON | {
        "tokenizer.kind": ("bpe", "unigram", "word", "char", "pieces"),
        "tokenizer.shared": (True,) if is_pre else (True, False),
        "model.final_norm": (None, is_pre),
        "model.positions": ("sinusoidal", *names.POSITIONS),
        "model.activation": tuple(ACTIVATIONS),
        "model.d_k": (None, head_width),
        "model.d_v": (None, head_width),
    }
    model.check_expressible(FORMAT, expressible)
    if any(None in getattr(side, "models", ()) for side in model.tokenizer.sides):
        raise UserError(
            f"--format={FORMAT}: cannot express a vocabulary without a SentencePiece model"
        )
    source = model.tokenizer.source
    if not isinstance(source, PieceVocabulary):
        # MarianTokenizer splits a tag off, and SentencePiece then segments the rest differently.
        tags = list(filter(TAG.fullmatch, source.pieces))
        if tags:
            raise UserError(f"--format={FORMAT}: cannot express {tags[0]} in a SentencePiece model")
    epsilon = settings["model.layer_norm_epsilon"]
    if epsilon != names.EPSILON:
        logging.warning(
            "model.layer_norm_epsilon=%g becomes %g, which this format fixes.",
            epsilon,
            names.EPSILON,
        )


def _layers(parameters: Arrays, settings: Settings) -> Arrays:
    # A permutation of the model's dimensions does not change the model.
    order = _order(settings)
    arrays = {}
    for module, foreign in names.module_names(settings):
        if module.endswith("norm"):
            weight = parameters[f"{module}.scale"][order]
            bias = parameters[f"{module}.bias"][order]
        else:
            weight = parameters[f"{module}.kernel"].T
            bias = parameters.get(f"{module}.bias", np.zeros(len(weight)))
            if module.endswith(("output", "outer")):
                # The outputs are the model's dimensions.
                weight = weight[order]
                bias = bias[order]
            else:
                weight = weight[:, order]
        arrays |= {f"{foreign}.weight": weight, f"{foreign}.bias": bias}
    return arrays


def _order(settings: Settings) -> np.ndarray:
    """Returns the order of the model's dimensions in which all sines come before all cosines."""
    dimensions = np.arange(settings["model.d_model"])
    alternate = settings["model.positions"] == "sinusoidal"
    return np.concatenate([dimensions[::2], dimensions[1::2]]) if alternate else dimensions


def _tables(parameters: Arrays, settings: Settings, max_positions: int) -> Arrays:
    """Returns the embeddings, the projection and bias of the logits, and vectors of positions."""
    share = settings["model.share_embeddings"]
    is_pegasus = settings["model.norm_position"] == "pre"
    table = parameters["decoder.embedding.table"]
    bias = parameters.get("output_bias", np.zeros(len(table)))
    target = table.copy()
    if settings["model.decoder_start"] == "zero":
        # The decoder here starts with a vector of zeros instead of BOS.
        target[BOS] = 0.0
        if bias[BOS] > NEVER / 2:
            share = "none"  # the logits need the vector that BOS had
    source = target if share == "all" else parameters.get("encoder.embedding.table", table)

    arrays = {}
    if share == "all" or is_pegasus:
        arrays[names.SHARED] = source
    if share != "all":
        arrays |= dict(zip(names.EMBEDDINGS, (source, target), strict=True))

    # A Pegasus model has one table or three.
    if share == "none":
        arrays[names.HEAD] = parameters.get("projection.kernel", table.T).T
    elif share == "target" and is_pegasus:
        arrays[names.HEAD] = target
    arrays = {name: table[:, _order(settings)] for name, table in arrays.items()}
    arrays[names.BIAS] = bias[None]

    # Only MarianMTModel computes positions, and only of the first kind.
    is_second = settings["model.positions"] == names.POSITIONS[1]
    if is_pegasus or is_second:
        kind = names.POSITIONS[is_second]
        encodings = sinusoids(kind, settings["model.d_model"], np.arange(max_positions))
        arrays |= dict.fromkeys(names.POSITION_TABLES, encodings)
    return arrays
