"""Beam search by Hugging Face's `generate`."""

from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from scripts.benchmarking.peers.marian_model import make_model
from scripts.benchmarking.worker import Prepared, serve


def main() -> None:
    serve(prepare)


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


if __name__ == "__main__":
    main()
