"""Decodes with Hugging Face's Transformers, by the protocol of this folder."""

import json
import math
import sys

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, MarianTokenizer

ROWS = 16  # of a batch
# The settings of the folder that a search here takes too. Others, such as a penalty of repetitions,
# are left out.
BEAMS_ONLY = ("early_stopping", "length_penalty")
TAKEN = (*BEAMS_ONLY, "min_length", "no_repeat_ngram_size", "suppress_tokens")


def main() -> None:
    request = json.load(sys.stdin)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = request["folder"]
    dtype = "auto" if request["quantization"] else torch.float32
    tokenizer = MarianTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype, use_safetensors=True).eval()
    own = model.generation_config.to_dict()
    with torch.inference_mode():
        answer = {
            "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
            "greedy": translate(model, tokenizer, request, own, beam_size=1),
            "beam": translate(model, tokenizer, request, own, request["beam_size"]),
            "scores": None if request["references"] is None else score(model, tokenizer, request),
        }
    json.dump(answer, sys.stdout)


def translate(model, tokenizer, request: dict, own: dict, beam_size: int) -> list[str]:
    """Returns the best translations, in batches of similar lengths.

    `own` has the folder's settings of the search.
    """
    pad, eos, start = (
        getattr(model.config, f"{name}_token_id") for name in ("pad", "eos", "decoder_start")
    )
    never = {pad, start, tokenizer.unk_token_id, *target_ids(tokenizer, ["<s>"])} - {eos}
    banned = [word for word in own.get("bad_words_ids") or [] if len(word) == 1]
    names = [
        name
        for name in TAKEN
        if own.get(name) is not None and (beam_size > 1 or name not in BEAMS_ONLY)
    ]
    model.generation_config = GenerationConfig(
        num_beams=beam_size,
        **{name: own[name] for name in names},
        max_length=request["max_length"] + 2,  # with the start and end-of-sentence
        bad_words_ids=[*banned, *([token] for token in sorted(never))],
        pad_token_id=pad,
        eos_token_id=eos,
        forced_eos_token_id=eos,
        decoder_start_token_id=start,
    )
    sources = request["sources"]
    translations = {}
    by_length = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(sources), ROWS):
        rows = by_length[first : first + ROWS]
        inputs = tokenizer(
            [sources[i] for i in rows], return_tensors="pt", padding=True, truncation=True
        )
        outputs = model.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
        )
        translations |= zip(
            rows, tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True
        )
    return [translations[i] for i in range(len(sources))]


def score(model, tokenizer, request: dict) -> list[float]:
    scores = []
    for source, reference in zip(request["sources"], request["references"], strict=True):
        inputs = tokenizer([source], return_tensors="pt", truncation=True)
        target = target_ids(tokenizer, reference["pieces"])
        previous = torch.tensor([[model.config.decoder_start_token_id, *target]])
        labels = torch.tensor([*target, model.config.eos_token_id])
        logits = model(
            inputs["input_ids"], inputs["attention_mask"], decoder_input_ids=previous
        ).logits[0]
        log_p = torch.log_softmax(logits.float(), dim=-1).gather(1, labels[:, None])
        scores.append(math.fsum(log_p[:, 0].tolist()))
    return scores


def target_ids(tokenizer, pieces: list[str]) -> list[int]:
    vocabulary = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    return [vocabulary.get(piece, vocabulary["<unk>"]) for piece in pieces]


if __name__ == "__main__":
    main()
