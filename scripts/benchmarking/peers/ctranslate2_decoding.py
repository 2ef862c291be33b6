"""Beam search by CTranslate2, with the model that Hugging Face's worker has."""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2
from ctranslate2.converters import Converter
from ctranslate2.converters.transformers import MarianMTLoader
from transformers import MarianMTModel

from scripts.benchmarking.peers.hugging_face import make_model
from scripts.benchmarking.worker import Prepared

END, UNKNOWN, PADDING = "</s>", "<unk>", "<pad>"


def prepare(task: dict[str, Any]) -> Prepared:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model"))
        RandomModel(make_model(task), task["eos"]).convert(path)
        translator = ctranslate2.Translator(
            path, compute_type=task["dtype"], inter_threads=1, intra_threads=task["threads"]
        )
    pieces = vocabulary(task["vocab_size"], task["eos"])
    source, length = [[pieces[token] for token in row] for row in task["source"]], task["output_tokens"]

    def translate() -> list[ctranslate2.TranslationResult]:
        return translator.translate_batch(
            source, beam_size=task["beam_size"], min_decoding_length=length, max_decoding_length=length
        )

    tokens = sum(len(result.hypotheses[0]) for result in translate())
    return Prepared(translate, tokens, f"CTranslate2 {ctranslate2.__version__}")


class RandomModel(Converter):
    """A conversion of a model in memory. It has no tokenizer: the name of each token is its number."""

    def __init__(self, model: MarianMTModel, end: int):
        self.model, self.end = model, end

    def _load(self):
        pieces = vocabulary(self.model.config.vocab_size, self.end)
        tokenizer = SimpleNamespace(
            **{"eos_token": END, "unk_token": UNKNOWN, "pad_token": PADDING, "bos_token": None},
            get_vocab=lambda: {piece: token for token, piece in enumerate(pieces)},
        )
        return MarianMTLoader()(self.model, tokenizer)


def vocabulary(size: int, end: int) -> list[str]:
    return [UNKNOWN if token == 1 else END if token == end else str(token) for token in range(size - 1)] + [PADDING]
