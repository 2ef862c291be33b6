"""Folders of MarianMTModel, made without the code under test, and the model's logits in NumPy."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from tests.data.tokenizers.tiny_texts import ENGLISH, GERMAN

D_MODEL, D_FF, HEADS, LAYERS, POSITIONS = 8, 16, 2, 1, 40


def write_folder(
    folder: Path, *, is_shared: bool = True, is_tied: bool = True, **changes: Any
) -> dict[str, np.ndarray]:
    """Writes a model with random weights, and returns these.

    `changes` replace keys of config.json.
    """
    folder.mkdir(parents=True)
    vocabularies = write_vocabularies(folder, is_shared)
    sizes = [len(vocabulary) for vocabulary in vocabularies]
    pad = vocabularies[-1]["<pad>"]
    settings = {
        "model_type": "marian",
        "activation_function": "swish",
        "d_model": D_MODEL,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "encoder_ffn_dim": D_FF,
        "decoder_ffn_dim": D_FF,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "vocab_size": sizes[0],
        "decoder_vocab_size": sizes[-1],
        "max_position_embeddings": POSITIONS,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": is_shared,
        "tie_word_embeddings": is_tied,
        "pad_token_id": pad,
        "eos_token_id": 0,
        "decoder_start_token_id": pad,
    }
    write_json(folder / "config.json", settings | changes)
    write_json(
        folder / "generation_config.json",
        {"num_beams": 3, "length_penalty": 1.5, "bad_words_ids": [[pad]]},
    )
    texts = {"source_lang": "eng", "target_lang": "deu", "separate_vocabs": not is_shared}
    write_json(folder / "tokenizer_config.json", texts)
    weights = random_weights(sizes, pad, is_shared, is_tied)
    write_safetensors(folder / "model.safetensors", weights)
    return weights


def random_weights(
    sizes: list[int], pad: int, is_shared: bool, is_tied: bool
) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    weights = {}

    def draw(name: str, *shape: int) -> None:
        weights[name] = random.normal(size=shape, scale=0.5).astype(np.float32)

    for stack, attentions in (
        ("encoder", ["self_attn"]),
        ("decoder", ["self_attn", "encoder_attn"]),
    ):
        for layer in (f"model.{stack}.layers.{i}" for i in range(LAYERS)):
            norms = ["final_layer_norm", *(f"{attention}_layer_norm" for attention in attentions)]
            shapes = {"fc1": (D_FF, D_MODEL), "fc2": (D_MODEL, D_FF)}
            shapes |= {
                f"{attention}.{x}_proj": (D_MODEL, D_MODEL)
                for attention in attentions
                for x in ("q", "k", "v", "out")
            }
            shapes |= dict.fromkeys(norms, (D_MODEL,))
            for name, shape in shapes.items():
                draw(f"{layer}.{name}.weight", *shape)
                draw(f"{layer}.{name}.bias", shape[0])
    tables = ["shared"] if is_shared else ["encoder.embed_tokens", "decoder.embed_tokens"]
    for name, size in zip(tables, sizes, strict=True):
        draw(f"model.{name}.weight", size, D_MODEL)
    weights[f"model.{tables[-1]}.weight"][pad] = 0.0
    if not is_tied:
        draw("lm_head.weight", sizes[-1], D_MODEL)
    draw("final_logits_bias", 1, sizes[-1])
    return weights


def write_vocabularies(folder: Path, is_shared: bool) -> list[dict[str, int]]:
    """Writes the SentencePiece models, and the vocabularies in another order than theirs, with
    language tokens.
    """
    pieces = []
    for name, texts in (("source.spm", ENGLISH), ("target.spm", GERMAN)):
        content = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts * 5), model_writer=content, vocab_size=40,
            model_type="bpe", eos_id=0, unk_id=1, bos_id=-1, pad_id=-1, minloglevel=2,
        )  # fmt: skip
        (folder / name).write_bytes(content.getvalue())
        model = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
        pieces.append({model.id_to_piece(i) for i in range(2, model.get_piece_size())})
    sides = [pieces[0] | pieces[1]] if is_shared else pieces
    vocabularies = []
    for name, side in zip(("vocab.json", "target_vocab.json"), sides, strict=False):
        listed = ["</s>", "<unk>", *sorted(side), ">>deu<<", ">>fra<<", "<pad>"]
        vocabularies.append({piece: i for i, piece in enumerate(listed)})
        write_json(folder / name, vocabularies[-1])
    return vocabularies


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    header, offset = {}, 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": "F32",
            "shape": array.shape,
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values())
    )


def logits(weights: dict[str, np.ndarray], source: list[int], previous: list[int]) -> np.ndarray:
    """Returns the logits (T, V) of MarianMTModel for one sentence, computed from the weights' own
    names.
    """
    shared = weights.get("model.shared.weight")
    tables = [
        weights.get(f"model.{stack}.embed_tokens.weight", shared)
        for stack in ("encoder", "decoder")
    ]
    memory = run_stack(weights, "encoder", tables[0][source], None)
    hidden = run_stack(weights, "decoder", tables[1][previous], memory)
    return hidden @ weights.get("lm_head.weight", tables[1]).T + weights["final_logits_bias"]


def run_stack(
    weights: dict[str, np.ndarray], stack: str, x: np.ndarray, memory: np.ndarray | None
) -> np.ndarray:
    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        normalized = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return normalized * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def attend(name: str, x: np.ndarray, keys_values: np.ndarray, is_causal: bool) -> np.ndarray:
        heads = []
        q, k, v = (
            linear(f"{name}.q_proj", x),
            linear(f"{name}.k_proj", keys_values),
            linear(f"{name}.v_proj", keys_values),
        )
        for head in np.split(np.arange(D_MODEL), HEADS):
            scores = q[:, head] @ k[:, head].T / np.sqrt(len(head))
            if is_causal:
                scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
            attention = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(attention / attention.sum(-1, keepdims=True) @ v[:, head])
        return linear(f"{name}.out_proj", np.concatenate(heads, axis=-1))

    angles = np.arange(len(x))[:, None] / 10_000 ** (np.arange(0, D_MODEL, 2) / D_MODEL)
    x = x * np.sqrt(D_MODEL) + np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    for layer in (f"model.{stack}.layers.{i}" for i in range(LAYERS)):
        x = norm(
            f"{layer}.self_attn_layer_norm",
            x + attend(f"{layer}.self_attn", x, x, stack == "decoder"),
        )
        if memory is not None:
            x = norm(
                f"{layer}.encoder_attn_layer_norm",
                x + attend(f"{layer}.encoder_attn", x, memory, False),
            )
        inner = linear(f"{layer}.fc1", x)
        # swish
        x = norm(
            f"{layer}.final_layer_norm", x + linear(f"{layer}.fc2", inner / (1 + np.exp(-inner)))
        )
    return x
