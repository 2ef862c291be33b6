"""Beam search by Hugging Face's `generate`, with its model of Marian, the Transformer of the paper."""

from typing import Any

import torch
import transformers
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from scripts.benchmarking.worker import Prepared


def prepare(task: dict[str, Any]) -> Prepared:
    torch.set_num_threads(task["threads"])
    model = make_model(task).to(getattr(torch, task["dtype"]))
    source, length = torch.tensor(task["source"]), task["output_tokens"]
    padding = model.config.pad_token_id
    settings = GenerationConfig(
        **{"num_beams": task["beam_size"], "min_new_tokens": length, "max_new_tokens": length, "do_sample": False},
        **{"pad_token_id": padding, "eos_token_id": task["eos"], "decoder_start_token_id": padding},
        bad_words_ids=[[padding]],
    )

    @torch.inference_mode()
    def generate() -> torch.Tensor:
        return model.generate(source, attention_mask=torch.ones_like(source), generation_config=settings)

    outputs = generate()[:, 1:]  # without the token that starts the decoder
    version = f"Transformers {transformers.__version__} with PyTorch {torch.__version__}"
    return Prepared(generate, int((outputs != padding).sum()), version)


def make_model(task: dict[str, Any]) -> MarianMTModel:
    """Returns a random model. Its padding is the vocabulary's last token, as converters of Marian's models expect."""
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
