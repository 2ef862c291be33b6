"""Hugging Face's model of Marian, the Transformer of the paper, with random weights."""

from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel


def make_model(task: dict[str, Any]) -> MarianMTModel:
    """Returns the model; its padding is the last token of the vocabulary, as converters of Marian's models expect."""
    layers, heads, width = task["num_layers"], task["num_heads"], task["d_ff"]
    torch.manual_seed(0)
    config = MarianConfig(
        **{"vocab_size": task["vocab_size"], "d_model": task["d_model"], "activation_function": "relu"},
        **{"encoder_layers": layers, "encoder_attention_heads": heads, "encoder_ffn_dim": width},
        **{"decoder_layers": layers, "decoder_attention_heads": heads, "decoder_ffn_dim": width},
        **{"max_position_embeddings": 512, "scale_embedding": True, "tie_word_embeddings": True},
        **{"bos_token_id": task["bos"], "eos_token_id": task["eos"], "forced_eos_token_id": None},
        **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), task["vocab_size"] - 1),
    )
    return MarianMTModel(config).eval()
