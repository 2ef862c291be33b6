"""Beam search with Hugging Face's Marian model, the paper's Transformer, and with CTranslate2."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import ctranslate2
import torch
import transformers
from ctranslate2.converters import Converter
from ctranslate2.converters.transformers import MarianMTLoader
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from scripts.benchmarking.worker import Prepared, Task

END = "</s>"
UNKNOWN = "<unk>"
PADDING = "<pad>"


def prepare_generate(task: Task) -> Prepared:
    torch.set_num_threads(task["threads"])
    model = make_model(task).to(getattr(torch, task["dtype"]))
    source = torch.tensor(task["source"])
    length = task["output_tokens"]
    padding = model.config.pad_token_id
    # All outputs have the same number of tokens: neither EOS nor padding ends them.
    settings = GenerationConfig(
        num_beams=task["beam_size"],
        min_new_tokens=length,
        max_new_tokens=length,
        do_sample=False,
        pad_token_id=padding,
        eos_token_id=task["eos"],
        decoder_start_token_id=padding,
        bad_words_ids=[[padding]],
    )

    @torch.inference_mode()
    def generate() -> torch.Tensor:
        return model.generate(
            source, attention_mask=torch.ones_like(source), generation_config=settings
        )

    outputs = generate()[:, 1:]  # without the token that starts the decoder
    version = f"Transformers {transformers.__version__} with PyTorch {torch.__version__}"
    return Prepared(generate, int((outputs != padding).sum()), version)


def make_model(task: Task) -> MarianMTModel:
    """Returns a random model.

    The last token of the vocabulary is padding, as converters of Marian's models expect.
    """
    torch.manual_seed(0)
    padding = task["vocab_size"] - 1
    # The model of the paper: post-norm, ReLU, sinusoids, and one embedding table.
    config = MarianConfig(
        vocab_size=task["vocab_size"],
        d_model=task["d_model"],
        activation_function="relu",
        encoder_layers=task["num_layers"],
        encoder_attention_heads=task["num_heads"],
        encoder_ffn_dim=task["d_ff"],
        decoder_layers=task["num_layers"],
        decoder_attention_heads=task["num_heads"],
        decoder_ffn_dim=task["d_ff"],
        max_position_embeddings=512,
        scale_embedding=True,
        tie_word_embeddings=True,
        bos_token_id=task["bos"],
        eos_token_id=task["eos"],
        forced_eos_token_id=None,
        pad_token_id=padding,
        decoder_start_token_id=padding,
    )
    return MarianMTModel(config).eval()


def prepare_ctranslate2(task: Task) -> Prepared:
    # Tokens are named by their number, except for the special tokens that the converter needs.
    pieces = [str(token) for token in range(task["vocab_size"])]
    pieces[1] = UNKNOWN
    pieces[task["eos"]] = END
    pieces[-1] = PADDING
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model"))
        RandomModel(make_model(task), pieces).convert(path)
        translator = ctranslate2.Translator(
            path, compute_type=task["dtype"], inter_threads=1, intra_threads=task["threads"]
        )

    source = [[pieces[token] for token in row] for row in task["source"]]
    length = task["output_tokens"]

    def translate() -> list[ctranslate2.TranslationResult]:
        return translator.translate_batch(
            source,
            beam_size=task["beam_size"],
            min_decoding_length=length,
            max_decoding_length=length,
        )

    tokens = sum(len(result.hypotheses[0]) for result in translate())
    return Prepared(translate, tokens, f"CTranslate2 {ctranslate2.__version__}")


class RandomModel(Converter):
    """A converter of a model in memory. There is no tokenizer: tokens are named by their number."""

    def __init__(self, model: MarianMTModel, pieces: list[str]):
        self.model = model
        self.pieces = pieces

    def _load(self):
        tokenizer = SimpleNamespace(
            eos_token=END,
            unk_token=UNKNOWN,
            pad_token=PADDING,
            bos_token=None,
            get_vocab=lambda: {piece: token for token, piece in enumerate(self.pieces)},
        )
        return MarianMTLoader()(self.model, tokenizer)
