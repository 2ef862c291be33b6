"""Translates the lines of standard input: python translate.py < INPUT > OUTPUT

Needs the packages jax, flatbuffers, numpy, safetensors and sentencepiece, and the files beside it.
"""

import itertools
import json
import pathlib
import sys

import jax.export
import numpy as np
import sentencepiece
from safetensors.numpy import load_file

FOLDER = pathlib.Path(__file__).parent
# The first tokens are padding, unknown, begin and end of sentence.
UNK = 1
EOS = 3
SPECIAL = 4
# The sentences of a batch. The search is compiled for each length of a batch, a power of two.
ROWS = 16


def read_processor(side: str) -> sentencepiece.SentencePieceProcessor | None:
    path = FOLDER / f"{side}.spm"
    return sentencepiece.SentencePieceProcessor(model_file=str(path)) if path.exists() else None


source = read_processor("source")
target = read_processor("target")
pieces = json.loads((FOLDER / "vocabulary.json").read_text("utf-8"))
tokens = {piece: token for token, piece in enumerate(pieces["source"]) if token >= SPECIAL}
config = json.loads((FOLDER / "config.json").read_text("utf-8"))
longest = config["decoding"]["max_source_length"]
# The programs were traced without the weights, which are their first argument.
weights = jax.device_put(load_file(FOLDER / "model.safetensors"))
search = jax.jit(jax.export.deserialize((FOLDER / "search.jax").read_bytes()).call)


def segment(line: str) -> list[str]:
    """Returns the pieces of a line. The line may begin with a language token such as >>fra<<."""
    if source is None:
        return line.split()
    language, end, rest = line.partition("<<")
    tag = language + end

    # SentencePiece would split a token that its model lacks.
    if end and tag in tokens and source.piece_to_id(tag) == source.unk_id():
        return [tag, *source.encode(rest, out_type=str)]
    return source.encode(line, out_type=str)


def join(output: np.ndarray) -> str:
    """Returns the text of the tokens of a translation."""
    words = [pieces["target"][token] for token in output if token == UNK or token >= SPECIAL]
    if target is None:
        return " ".join(words)
    return target.decode(words).replace("\u2581", " ").strip()


sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")
sys.stdout.reconfigure(encoding="utf-8")
for lines in iter(lambda: list(itertools.islice(sys.stdin, ROWS)), []):
    texts = []
    for line in lines:
        line = line.rstrip("\n")
        text = segment(line)
        if len(text) >= longest:
            print(f"cut after {longest - 1} of {len(text)} tokens: {line[:40]}...", file=sys.stderr)
        texts.append(text[: longest - 1])

    # Every batch has the same number of rows. An empty row gives an empty translation.
    length = 1 << max(map(len, texts)).bit_length()
    batch = np.zeros((ROWS, max(16, length)), np.int32)
    for row, text in zip(batch, texts, strict=False):
        if text:
            row[: len(text) + 1] = [*(tokens.get(piece, UNK) for piece in text), EOS]
    outputs, _scores = jax.device_get(search(weights, batch))
    for output in outputs[: len(lines)]:
        # A translation is one line.
        print(" ".join(join(output).splitlines()), flush=True)
