"""Export of T5's family in Hugging Face's layout: the inverse of `hugging_face_t5`."""

from pathlib import Path

import numpy as np

from scripts.interop import hugging_face_t5_names as names
from scripts.interop import t5_vocabulary
from scripts.interop.hugging_face_folder import search_settings, write_weights
from scripts.interop.hugging_face_names import CONFIG, GENERATION, TOKENIZER
from scripts.interop.portable import COMMON, NEVER, PortableModel
from transformer.config.keys import freeze
from transformer.config.types import head_widths, output_limit
from transformer.support import files
from transformer.support.errors import UserError
from transformer.support.special_tokens import PAD

FORMAT = "huggingface"
ACTIVATIONS = {ours: foreign for foreign, ours in names.ACTIVATIONS.items()}


def write(model: PortableModel, folder: Path, quantization: str | None) -> None:
    """Writes the model into a folder.

    Raises UserError, with the setting, for a model that no class can express.
    """
    settings = model.settings
    config = freeze(settings)
    d_k, d_v = head_widths(config.model)
    expressible = COMMON | {key: (value,) for key, value in names.ARCHITECTURE.items()}
    expressible |= {
        "model.positions": tuple(names.CLASSES),
        "model.final_norm": (None, True),
        "model.activation": tuple(ACTIVATIONS),
        "model.share_embeddings": ("all", "inputs"),
        "model.decoder_start": ("bos",),
        # A head has one width.
        "model.d_v": (config.model.d_v if d_v == d_k else d_k,),
        "tokenizer.kind": ("unigram", "byte"),
    }
    model.check_expressible(FORMAT, expressible)
    rows = _tokens_of_rows(model)

    arrays = {}
    for name, foreign in names.parameter_names(settings):
        array = model.parameters[name]
        arrays[foreign] = array.T if name.endswith("kernel") else array
    scale = np.float32(config.model.d_model**0.5)
    arrays[names.EMBEDDINGS[0]] = model.parameters["decoder.embedding.table"][rows] * scale
    is_tied = config.model.share_embeddings == "all"
    if not is_tied:
        arrays[names.HEAD] = model.parameters["projection.kernel"].T[rows]
    dtype = write_weights(arrays, folder, quantization)

    model_type, architecture = names.CLASSES[config.model.positions]
    written = names.FIXED | {foreign: settings[key] for key, foreign in names.KEYS.items()}
    written |= {
        "architectures": [architecture],
        "model_type": model_type,
        "is_encoder_decoder": True,
        "dtype": dtype,
        "vocab_size": len(rows),
        "num_decoder_layers": config.model.num_decoder_layers or config.model.num_layers,
        "d_kv": d_k,
        "feed_forward_proj": ACTIVATIONS[config.model.activation],
        "tie_word_embeddings": is_tied,
        "dropout_rate": config.model.dropout,  # T5 has one rate for all places
    }
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    longest = config.decoding.max_source_length
    search = search_settings(model, output_limit(longest, config.decoding) + 2, rows)
    texts = t5_vocabulary.write(model.tokenizer.source, folder) | {"model_max_length": longest}
    files.write_json(folder / CONFIG, written | tokens)
    files.write_json(folder / GENERATION, search | tokens)
    files.write_json(folder / TOKENIZER, texts)


def _tokens_of_rows(model: PortableModel) -> list[int]:
    """Returns the token of each row of T5's table."""
    # Logits have no bias, except that of a PAD that no row has.
    bias = model.parameters.get("output_bias")
    if bias is not None and (bias[PAD] > NEVER / 2 or np.delete(bias, PAD).any()):
        raise UserError(
            f"--format={FORMAT}: cannot express model.output_bias=True; train with "
            "--config.training.freeze=output_bias, or without the bias"
        )
    return t5_vocabulary.rows_of(model.tokenizer.source, has_padding_row=bias is None)
