"""Hugging Face: decodes with Transformers. The docstring of the package explains the protocol."""

import json
import math
import pathlib
import sys

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    ByT5Tokenizer,
    GenerationConfig,
    MarianTokenizer,
    T5Tokenizer,
)

ROWS = 16  # of a batch
# The settings of the folder that the search here takes too. Others, such as a penalty of
# repetitions, are left out.
BEAM_SETTINGS = ("early_stopping", "length_penalty")
SETTINGS = (*BEAM_SETTINGS, "min_length", "no_repeat_ngram_size", "suppress_tokens")


def main():
    request = json.load(sys.stdin)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = request["folder"]
    dtype = "auto" if request["quantization"] else torch.float32
    tokenizer = tokenizer_class(pathlib.Path(folder)).from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype, use_safetensors=True).eval()
    if model.config.model_type == "umt5":
        # Transformers ignores the setting, and divides the logits of all umT5 models.
        settings = json.loads(pathlib.Path(folder, "config.json").read_text("utf-8"))
        model.config.tie_word_embeddings = settings.get("tie_word_embeddings", True)
    search = model.generation_config.to_dict()
    answer = {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "scores": None,
    }
    with torch.inference_mode():
        answer["greedy"] = translate(model, tokenizer, request, search, beam_size=1)
        answer["beam"] = translate(model, tokenizer, request, search, request["beam_size"])
        if request["references"] is not None:
            answer["scores"] = score(model, tokenizer, request)
    json.dump(answer, sys.stdout)


def tokenizer_class(folder):
    if AutoConfig.from_pretrained(folder).model_type in ("marian", "pegasus"):
        return MarianTokenizer
    # Either file may name the class.
    for name in ("tokenizer_config.json", "config.json"):
        path = folder / name
        if path.exists() and "ByT5Tokenizer" in path.read_text("utf-8"):
            return ByT5Tokenizer
    return T5Tokenizer


def translate(model, tokenizer, request, search, beam_size):
    """Returns the best translations, in batches of similar lengths.

    `search` has the folder's settings of the search.
    """
    eos = model.config.eos_token_id
    pad = model.config.pad_token_id
    start = model.config.decoder_start_token_id

    # These tokens have no text.
    never = {pad, start, tokenizer.unk_token_id}
    if not isinstance(tokenizer, ByT5Tokenizer):
        never |= {*target_ids(tokenizer, ["<s>"])}
    if not isinstance(tokenizer, MarianTokenizer):
        # T5's tables have rows without a piece.
        never |= {*range(len(tokenizer), model.get_output_embeddings().out_features)}
    banned = [word for word in search.get("bad_words_ids") or [] if len(word) == 1]

    # These settings need several beams.
    names = SETTINGS
    if beam_size == 1:
        names = [name for name in SETTINGS if name not in BEAM_SETTINGS]
    model.generation_config = GenerationConfig(
        num_beams=beam_size,
        **{name: search[name] for name in names if search.get(name) is not None},
        max_length=request["max_length"] + 2,  # with the start and end-of-sentence
        bad_words_ids=[*banned, *([token] for token in sorted(never - {eos}))],
        pad_token_id=pad,
        eos_token_id=eos,
        forced_eos_token_id=eos,
        decoder_start_token_id=start,
    )

    # Sorted sources have less padding.
    sources = request["sources"]
    translations = {}
    by_length = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(sources), ROWS):
        rows = by_length[first : first + ROWS]
        texts = [sources[i] for i in rows]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
        outputs = model.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
        )
        results = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        translations |= zip(rows, results, strict=True)
    return [translations[i] for i in range(len(sources))]


def score(model, tokenizer, request):
    """Returns the log-probability of each reference, with end-of-sentence."""
    scores = []
    for source, reference in zip(request["sources"], request["references"], strict=True):
        inputs = tokenizer([source], return_tensors="pt", truncation=True)
        target = target_ids(tokenizer, reference["pieces"])

        # The decoder reads the start and the target, and predicts the target and its end.
        previous = torch.tensor([[model.config.decoder_start_token_id, *target]])
        labels = torch.tensor([*target, model.config.eos_token_id])
        outputs = model(inputs["input_ids"], inputs["attention_mask"], decoder_input_ids=previous)
        log_p = torch.log_softmax(outputs.logits[0].float(), dim=-1)  # (T, V)
        scores.append(math.fsum(log_p.gather(1, labels[:, None])[:, 0].tolist()))
    return scores


def target_ids(tokenizer, pieces):
    if isinstance(tokenizer, ByT5Tokenizer):
        return [byte_id(tokenizer, piece) for piece in pieces]
    if not isinstance(tokenizer, MarianTokenizer):
        return tokenizer.convert_tokens_to_ids(pieces)
    vocabulary = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    return [vocabulary.get(piece, vocabulary["<unk>"]) for piece in pieces]


def byte_id(tokenizer, piece):
    """Returns the id of a piece of `ByteVocabulary`: a character, "\\xC3", or a symbol."""
    if piece == "\u2581":
        piece = " "
    elif piece.startswith("\\x"):
        piece = chr(int(piece[2:], 16))
    return tokenizer.convert_tokens_to_ids(piece)


if __name__ == "__main__":
    main()
