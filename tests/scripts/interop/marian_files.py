"""Tiny models as Marian and Bergamot write them, made without our code."""

import functools
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

WIDTH, INNER, HEADS = 4, 6, 2
TEXTS = [f"{first}{second} {second}{first}" for first in "abcdefgh" for second in "stuvwxyz"]
SETTINGS = {
    **{
        "type": "transformer",
        "enc-depth": 1,
        "dec-depth": 2,
        "dim-emb": WIDTH,
        "transformer-dim-ffn": INNER,
    },
    **{
        "transformer-heads": HEADS,
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": "",
    },
    **{
        "transformer-postprocess": "dan",
        "transformer-postprocess-top": "",
        "tied-embeddings-all": True,
    },
    **{
        "transformer-decoder-autoreg": "self-attention",
        "dec-cell": "gru",
        "input-types": [],
        "skip": False,
    },
}
SSRU = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
PRE_NORM = {
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-top": "n",
}


@functools.cache
def vocabulary(size: int = 30) -> bytes:
    """Returns a SentencePiece model with Marian's special tokens: </s> is 0, <unk> is 1."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, model_type="unigram", vocab_size=size,
        pad_id=-1, bos_id=-1, eos_id=0, unk_id=1, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def make_arrays(tables: dict[str, int], settings: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns random arrays; `tables` has the number of tokens of each table."""
    random, shapes = (
        np.random.default_rng(5),
        {name: (size, WIDTH) for name, size in tables.items()},
    )
    shapes["decoder_ff_logit_out_b"] = (1, list(tables.values())[-1])
    suffix = "_pre" if settings["transformer-preprocess"] == "n" else ""

    def add_norm(name: str, suffix: str = suffix) -> None:
        shapes.update(
            {f"{name}_ln_scale{suffix}": (1, WIDTH), f"{name}_ln_bias{suffix}": (1, WIDTH)}
        )

    for stack, layer in (("encoder", 1), ("decoder", 1), ("decoder", 2)):
        name = f"{stack}_l{layer}"
        attentions = ["self"] if stack == "encoder" else ["self", "context"]
        if stack == "decoder" and settings["dec-cell"] == "ssru":
            attentions.remove("self")
            shapes |= {
                f"{name}_rnn_W": (WIDTH,) * 2,
                f"{name}_rnn_Wf": (WIDTH,) * 2,
                f"{name}_rnn_bf": (1, WIDTH),
            }
            add_norm(f"{name}_rnn" if suffix else f"{name}_rnn_ffn")
        for attention in attentions:
            for part in "qkvo":
                shapes |= {
                    f"{name}_{attention}_W{part}": (WIDTH, WIDTH),
                    f"{name}_{attention}_b{part}": (1, WIDTH),
                }
            add_norm(f"{name}_{attention}_Wo")
        shapes |= {f"{name}_ffn_W1": (WIDTH, INNER), f"{name}_ffn_b1": (1, INNER)}
        shapes |= {f"{name}_ffn_W2": (INNER, WIDTH), f"{name}_ffn_b2": (1, WIDTH)}
        add_norm(f"{name}_ffn_ffn")
    for stack in ("encoder", "decoder") if settings["transformer-postprocess-top"] else ():
        add_norm(f"{stack}_top", "")
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def settings_array(settings: dict[str, Any]) -> np.ndarray:
    lines = [
        f"{name}: {str(value).lower() if value != '' else repr(value)}\n"
        for name, value in settings.items()
    ]
    return np.frombuffer("".join(lines).encode() + b"\0", np.int8)


def write_npz(
    folder: Path, tables: dict[str, int] | None = None, size: int = 30, **changes: Any
) -> Path:
    """Writes model.npz and vocab.spm.

    `changes` are settings with _ for -, or arrays; None removes one.
    """
    settings = {
        name.replace("_", "-"): value
        for name, value in changes.items()
        if not isinstance(value, np.ndarray)
    }
    settings = SETTINGS | settings
    arrays = make_arrays(tables or {"Wemb": 30}, settings) | {
        "special:model.yml": settings_array(settings)
    }
    arrays |= {name: value for name, value in changes.items() if isinstance(value, np.ndarray)}
    np.savez(folder / "model.npz", **arrays)
    (folder / "vocab.spm").write_bytes(vocabulary(size))
    return folder / "model.npz"


# tables whose rows are looked up; the others are multiplied
LOOKED_UP = ("Wemb", "encoder_Wemb", "decoder_Wemb")


def binary(arrays: dict[str, np.ndarray], factors: dict[str, float] | None = None) -> bytes:
    """Returns a .bin file; the arrays that `factors` names are int8, transposed unless they are the
    embeddings.
    """
    names, heads, shapes, data = b"", b"", b"", b""
    for name, array in arrays.items():
        factor = (factors or {}).get(name)
        if factor is not None:
            values = np.clip(np.rint(array * factor), -127, 127).astype(np.int8)
            content, kind = (
                (values if name in LOOKED_UP else values.T).tobytes() + struct.pack("<f", factor),
                0x4101,
            )
        else:
            content, kind = array.tobytes(), 0x404 if array.dtype == np.float32 else 0x101
        content += bytes(-len(content) % 256)
        heads += struct.pack("<QQQQ", len(name) + 1, kind, array.ndim, len(content))
        names, shapes = (
            names + name.encode() + b"\0",
            shapes + struct.pack(f"<{array.ndim}i", *array.shape),
        )
        data += content
    start = struct.pack("<QQ", 1, len(arrays)) + heads + names + shapes
    padding = -(len(start) + 8) % 256
    return start + struct.pack("<Q", padding) + bytes(padding) + data


def write_binary_of_two(folder: Path) -> dict[str, np.ndarray]:
    """Writes a student with two vocabularies and without settings, like Firefox's en-ja.

    Returns its arrays.
    """
    settings = SETTINGS | SSRU | {"tied-embeddings-all": False, "tied-embeddings": True}
    arrays = make_arrays({"encoder_Wemb": 30, "decoder_Wemb": 28}, settings)
    factors = {name: 37.5 for name in arrays if "_W" in name and "_ln_" not in name}
    content = binary(arrays | {"special:model.yml": settings_array(settings)}, factors)
    (folder / "model.xxyy.intgemm.alphas.bin").write_bytes(content)
    (folder / "srcvocab.xxyy.spm").write_bytes(vocabulary(30))
    (folder / "trgvocab.xxyy.spm").write_bytes(vocabulary(28))
    return arrays


def write_binary(folder: Path) -> Path:
    """Writes a student with int8 matrices as Mozilla does, with a vocabulary, a shortlist and the
    settings.
    """
    settings = SETTINGS | SSRU
    arrays = make_arrays({"Wemb": 30}, settings)
    factors = {
        name: 37.5 for name in arrays if "_W" in name and "_ln_" not in name or name == "Wemb"
    }
    arrays |= {
        "special:model.yml": settings_array(settings),
        "none_QuantMultA": np.full((1, 1), 3, np.float32),
    }
    (folder / "model.xxyy.intgemm.alphas.bin").write_bytes(binary(arrays, factors))
    (folder / "vocab.xxyy.spm").write_bytes(vocabulary())
    (folder / "lex.50.50.xxyy.s2t.bin").write_bytes(shortlist([[], [], [5, 9], [7], *[[]] * 26], 3))
    lines = (
        "beam-size: 1",
        "normalize: 1.0",
        "word-penalty: 0",
        "max-length-factor: 2.5",
        "vocabs:",
        "  - vocab.xxyy.spm",
    )
    (folder / "config.intgemm8bitalpha.yml").write_text(
        "\n".join([*lines, "  - vocab.xxyy.spm", ""])
    )
    return folder / "model.xxyy.intgemm.alphas.bin"


def shortlist(translations: list[list[int]], frequent: int) -> bytes:
    """Returns a binary shortlist with these translations of each source token."""
    offsets = np.cumsum([0, *map(len, translations)], dtype="<u8")
    ids = np.array([token for tokens in translations for token in tokens], "<u4")
    head = struct.pack("<6Q", 0xF11A48D5013417F5, 0, frequent, 2, len(offsets), len(ids))
    return head + offsets.tobytes() + ids.tobytes()
