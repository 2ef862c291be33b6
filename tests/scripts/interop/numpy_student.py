"""A student of Firefox Translations in NumPy: reads the files and decodes greedily in float32,
without our code.

The architecture is that of Kim et al. 2019: an encoder of post-norm layers, and a decoder whose
self-attention is a Simpler Simple Recurrent Unit.
"""

import math
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece

END = 0
HEADS = 8


class Stored(NamedTuple):
    """The values of an array in the order of the file, its shape, and the factor of int8 values."""

    values: np.ndarray
    shape: tuple[int, ...]
    factor: float | None = None


def read_arrays(path: Path) -> dict[str, Stored]:
    """Reads all arrays of a .bin file: float32, bytes, and int8 matrices as float32."""
    content = path.read_bytes()
    version, count = struct.unpack_from("<QQ", content)
    assert version == 1
    heads = [struct.unpack_from("<QQQQ", content, 16 + 32 * index) for index in range(count)]
    position, names, shapes = 16 + 32 * count, [], []
    for length, *_ in heads:
        names.append(content[position : position + length].rstrip(b"\0").decode())
        position += length
    for _, _, rank, _ in heads:
        shapes.append(struct.unpack_from(f"<{rank}i", content, position))
        position += 4 * rank
    position += 8 + struct.unpack_from("<Q", content, position)[0]
    arrays = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, heads, strict=True):
        elements = math.prod(shape)
        if kind == 0x404:
            arrays[name] = Stored(np.frombuffer(content, "<f4", elements, position), shape)
        elif kind == 0x101:
            arrays[name] = Stored(np.frombuffer(content, "i1", elements, position), shape)
        elif kind == 0x4101 and not name.endswith("_QuantMultA"):
            (factor,) = struct.unpack_from("<f", content, position + elements)
            values = np.frombuffer(content, "i1", elements, position).astype(
                np.float32
            ) / np.float32(factor)
            arrays[name] = Stored(values, shape, factor)
        position += size
    return arrays


def as_table(stored: Stored) -> np.ndarray:
    """Returns a matrix whose rows are looked up."""
    return stored.values.reshape(stored.shape)


def as_factor(stored: Stored) -> np.ndarray:
    """Returns the matrix W of a product x W, which is stored as its transpose in int8."""
    if stored.factor is None:
        return stored.values.reshape(stored.shape)
    return stored.values.reshape(stored.shape[::-1]).T


def read_shortlist(path: Path) -> tuple[int, np.ndarray, np.ndarray]:
    """Returns the number of frequent tokens, and the offsets of each source token in the list of
    all translations.
    """
    content = path.read_bytes()
    magic, _, frequent, _, words, size = struct.unpack_from("<6Q", content)
    assert magic == 0xF11A48D5013417F5
    return (
        frequent,
        np.frombuffer(content, "<u8", words, 48),
        np.frombuffer(content, "<u4", size, 48 + 8 * words),
    )


class Student:
    """The model in a folder. With `shortlist`, it considers the tokens of the folder's shortlist
    only.

    The use of a matrix decides its layout, not its name: rows of tables are looked up, so int8
    tables are stored row by row. All other int8 matrices are stored transposed, for the kernels of
    the matmul.
    """

    def __init__(self, folder: Path, shortlist: bool) -> None:
        (model,), vocabularies = folder.glob("model.*.bin"), sorted(folder.glob("*vocab.*.spm"))
        self.arrays = read_arrays(model)
        self.source, self.target = (
            sentencepiece.SentencePieceProcessor(model_file=str(path))
            for path in (vocabularies[0], vocabularies[-1])
        )
        self.is_shared = len(vocabularies) == 1
        self.shortlist = read_shortlist(next(folder.glob("lex.*.bin"))) if shortlist else None
        self.encoder_depth, self.decoder_depth = (
            sum(f"{stack}_l{number}_ffn_W1" in self.arrays for number in range(1, 20))
            for stack in ("encoder", "decoder")
        )

    def translate(self, text: str) -> str:
        source = [*self.source.encode(text), END]
        memory = self.embed("encoder", source, 0)
        for number in range(1, self.encoder_depth + 1):
            layer = f"encoder_l{number}"
            memory = self.attend(f"{layer}_self", memory, memory)
            memory = self.feed_forward(layer, memory)
        tokens = self.candidates(source)
        table, bias = self.table("decoder")[tokens], self.vector("decoder_ff_logit_out_b")[tokens]
        bias = np.where(tokens == self.target.unk_id(), -np.inf, bias)
        states = [np.zeros((1, memory.shape[1]), np.float32)] * self.decoder_depth
        target: list[int] = []
        while len(target) < 2.5 * len(source) and target[-1:] != [END]:
            x = self.embed("decoder", target[-1:], len(target)) if target else self.positions(1, 0)
            for number in range(1, self.decoder_depth + 1):
                layer = f"decoder_l{number}"
                forget = 1 / (1 + np.exp(-self.affine(x, f"{layer}_rnn_Wf", f"{layer}_rnn_bf")))
                states[number - 1] = forget * states[number - 1] + (1 - forget) * (
                    x @ self.matrix(f"{layer}_rnn_W")
                )
                x = self.norm(x + np.maximum(states[number - 1], 0), f"{layer}_rnn_ffn")
                x = self.attend(f"{layer}_context", x, memory)
                x = self.feed_forward(layer, x)
            target.append(int(tokens[np.argmax(table @ x[0] + bias)]))
        return self.target.decode(target[: target.index(END)] if END in target else target)

    def candidates(self, source: list[int]) -> np.ndarray:
        """Returns the tokens to consider, in ascending order."""
        if self.shortlist is None:
            return np.arange(self.target.vocab_size())
        frequent, offsets, translations = self.shortlist
        lists = [translations[int(offsets[token]) : int(offsets[token + 1])] for token in source]
        copied = source if self.is_shared else []
        return np.unique(np.concatenate([np.arange(frequent), copied, *lists])).astype(np.int64)

    def table(self, stack: str) -> np.ndarray:
        return as_table(self.arrays.get(f"{stack}_Wemb") or self.arrays["Wemb"])

    def matrix(self, name: str) -> np.ndarray:
        return as_factor(self.arrays[name])

    def vector(self, name: str) -> np.ndarray:
        return self.arrays[name].values

    def embed(self, stack: str, tokens: list[int], start: int) -> np.ndarray:
        table = self.table(stack)
        return table[tokens] * np.float32(math.sqrt(table.shape[1])) + self.positions(
            len(tokens), start
        )

    def positions(self, length: int, start: int) -> np.ndarray:
        half = self.table("decoder").shape[1] // 2
        frequencies = np.exp(np.arange(half) * -(math.log(10_000) / (half - 1)))
        angles = np.arange(start, start + length)[:, None] * frequencies
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)

    def affine(self, x: np.ndarray, kernel: str, bias: str) -> np.ndarray:
        return x @ self.matrix(kernel) + self.vector(bias)

    def attend(self, name: str, x: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Returns LayerNorm(x + attention), of HEADS heads."""
        parts = ((x, "q"), (memory, "k"), (memory, "v"))
        q, k, v = (
            self.affine(inputs, f"{name}_W{part}", f"{name}_b{part}") for inputs, part in parts
        )
        q, k, v = (part.reshape(len(part), HEADS, -1).swapaxes(0, 1) for part in (q, k, v))
        scores = q @ k.swapaxes(1, 2) / np.float32(math.sqrt(q.shape[2]))
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        heads = weights / weights.sum(axis=2, keepdims=True) @ v
        merged = heads.swapaxes(0, 1).reshape(len(x), -1)
        return self.norm(x + self.affine(merged, f"{name}_Wo", f"{name}_bo"), f"{name}_Wo")

    def feed_forward(self, layer: str, x: np.ndarray) -> np.ndarray:
        hidden = np.maximum(self.affine(x, f"{layer}_ffn_W1", f"{layer}_ffn_b1"), 0)
        return self.norm(
            x + self.affine(hidden, f"{layer}_ffn_W2", f"{layer}_ffn_b2"), f"{layer}_ffn_ffn"
        )

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centered = x - x.mean(axis=1, keepdims=True)
        scale = np.sqrt(np.square(centered).mean(axis=1, keepdims=True) + np.float32(1e-6))
        return centered / scale * self.vector(f"{name}_ln_scale") + self.vector(f"{name}_ln_bias")
