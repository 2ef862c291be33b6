"""Folders of T5's family, made without the code under test, and the models' logits in NumPy."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from tests.data.tokenizers.tiny_texts import ENGLISH, GERMAN
from tests.scripts.interop.hugging_face_folders import write_json, write_safetensors

D_MODEL, D_KV, D_FF, HEADS, LAYERS, DECODER_LAYERS = 12, 5, 16, 2, 2, 1
EXTRA_IDS = 3
SETTINGS = {
    "d_model": D_MODEL,
    "d_kv": D_KV,
    "d_ff": D_FF,
    "num_heads": HEADS,
    "num_layers": LAYERS,
    "num_decoder_layers": DECODER_LAYERS,
    "decoder_start_token_id": 0,
}
# The settings of config.json, and whether the logits have a matrix of their own.
VARIANTS = {
    "t5": ({"model_type": "t5"}, False),
    "t5 v1.1": (
        {"model_type": "t5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        True,
    ),
    "t5 v1.1 saved by Transformers 5": (
        {
            "model_type": "t5",
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": True,
            "scale_decoder_outputs": False,
        },
        True,
    ),
    "a tied t5 with another matrix": ({"model_type": "t5", "feed_forward_proj": "gelu"}, True),
    "mt5": ({"model_type": "mt5", "tie_word_embeddings": False}, True),
    "umt5": ({"model_type": "umt5", "tie_word_embeddings": False}, True),
    "byt5": (
        {
            "model_type": "t5",
            "tokenizer_class": "ByT5Tokenizer",
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
        True,
    ),
    "a tied umt5": ({"model_type": "umt5", "feed_forward_proj": "gated-silu"}, False),
}

# Standard deviations by which `encourage_end` raises the logit of </s>, if not two.
GAINS_OF_END = {"a tied t5 with another matrix": 0.0, "a tied umt5": 3.0}


def write_folder(
    folder: Path, variant: str = "t5", *, spare_rows: int = 1, **changes: Any
) -> dict[str, np.ndarray]:
    """Writes a model with random weights, and returns these. `changes` replace keys of config.json.

    The table has `spare_rows` more rows than the vocabulary.
    """
    folder.mkdir(parents=True)
    settings, is_untied = VARIANTS[variant]
    size = 259 if variant == "byt5" else write_vocabulary(folder)
    size += EXTRA_IDS + spare_rows
    settings = SETTINGS | {"vocab_size": size} | settings | changes
    write_json(folder / "config.json", settings)
    write_json(folder / "generation_config.json", {"decoder_start_token_id": 0})
    write_json(folder / "tokenizer_config.json", {"extra_ids": EXTRA_IDS})
    weights = random_weights(settings, is_untied)
    encourage_end(weights, variant)
    write_safetensors(folder / "model.safetensors", weights)
    return weights


def write_vocabulary(folder: Path) -> int:
    """Writes the SentencePiece model, and returns the number of its pieces."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((ENGLISH + GERMAN) * 5), model_writer=content, vocab_size=39,
        model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    (folder / "spiece.model").write_bytes(content.getvalue())
    return 39


def is_gated(settings: dict[str, Any]) -> bool:
    default = "relu" if settings["model_type"] == "t5" else "gated-gelu"
    return settings.get("feed_forward_proj", default).startswith("gated")


def random_weights(settings: dict[str, Any], is_untied: bool) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    inner = D_KV * HEADS
    per_layer = settings["model_type"] == "umt5"
    weights = {}

    def draw(name: str, *shape: int) -> None:
        weights[f"{name}.weight"] = random.normal(size=shape, scale=0.5).astype(np.float32)

    draw("shared", settings["vocab_size"], D_MODEL)
    if is_untied:
        draw("lm_head", settings["vocab_size"], D_MODEL)
    for stack, depth, attentions in (
        ("encoder", LAYERS, ("SelfAttention",)),
        ("decoder", DECODER_LAYERS, ("SelfAttention", "EncDecAttention")),
    ):
        draw(f"{stack}.final_layer_norm", D_MODEL)
        for block in range(depth):
            layers = f"{stack}.block.{block}.layer"
            for number, attention in enumerate(attentions):
                for projection in "qkv":
                    draw(f"{layers}.{number}.{attention}.{projection}", inner, D_MODEL)
                draw(f"{layers}.{number}.{attention}.o", D_MODEL, inner)
            if block == 0 or per_layer:
                draw(f"{layers}.0.SelfAttention.relative_attention_bias", 32, HEADS)
            number = len(attentions)
            for name in ("wi_0", "wi_1") if is_gated(settings) else ("wi",):
                draw(f"{layers}.{number}.DenseReluDense.{name}", D_FF, D_MODEL)
            draw(f"{layers}.{number}.DenseReluDense.wo", D_MODEL, D_FF)
            for norm in range(number + 1):
                draw(f"{layers}.{norm}.layer_norm", D_MODEL)
    return weights


def encourage_end(weights: dict[str, np.ndarray], variant: str) -> None:
    """Raises the logit of </s> by some standard deviations of the logits.

    Or most translations would reach the length limit.
    """
    gain = GAINS_OF_END.get(variant, 2.0)
    random = np.random.default_rng(1)
    states = []
    for _ in range(20):
        source, previous = random.integers(3, 39, (2, 6)).tolist()
        states.append(hidden_states(weights, variant, [*source, 1], [0, *previous]))
    mean = np.concatenate(states).mean(axis=0)
    head = weights.get("lm_head.weight", weights["shared.weight"])
    deviation = (np.concatenate(states) @ head.T).std()
    head[1] += (gain * deviation * mean / (mean @ mean)).astype(np.float32)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gated-silu": lambda x: x / (1 + np.exp(-x)),
    "gated-gelu": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


def logits(
    weights: dict[str, np.ndarray], variant: str, source: list[int], previous: list[int]
) -> np.ndarray:
    """Returns the logits (T, V) for one sentence, computed from the weights' own names."""
    settings, _ = VARIANTS[variant]
    hidden = hidden_states(weights, variant, source, previous)
    scaled = settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings", True))
    if scaled:
        hidden = hidden / math.sqrt(D_MODEL)
    return hidden @ weights.get("lm_head.weight", weights["shared.weight"]).T


def hidden_states(
    weights: dict[str, np.ndarray], variant: str, source: list[int], previous: list[int]
) -> np.ndarray:
    """Returns the decoder's output (T, D)."""
    settings, _ = VARIANTS[variant]
    default = "relu" if settings["model_type"] == "t5" else "gated-gelu"
    activation = ACTIVATIONS[settings.get("feed_forward_proj", default)]
    shared = weights["shared.weight"]
    memory = run_stack(weights, "encoder", shared[source], None, activation)
    return run_stack(weights, "decoder", shared[previous], memory, activation)


def bucket(distance: int, is_decoder: bool) -> int:
    """Returns the bucket of key position - query position, of 32 with a maximum of 128."""
    buckets, first = (32, 0) if is_decoder else (16, 16 * (distance > 0))
    size = max(-distance, 0) if is_decoder else abs(distance)
    exact = buckets // 2
    if size < exact:
        return first + size
    larger = exact + int(math.log(size / exact) / math.log(128 / exact) * (buckets - exact))
    return first + min(larger, buckets - 1)


def run_stack(
    weights: dict[str, np.ndarray], stack: str, x: np.ndarray, memory: np.ndarray | None, activation
) -> np.ndarray:
    is_decoder = memory is not None

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        mean_square = np.mean(x**2, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + 1e-6) * weights[f"{name}.weight"]

    def attend(name: str, x: np.ndarray, keys_values: np.ndarray, bias: np.ndarray) -> np.ndarray:
        q, k, v = (
            (y @ weights[f"{name}.{letter}.weight"].T).reshape(len(y), HEADS, D_KV)
            for letter, y in (("q", x), ("k", keys_values), ("v", keys_values))
        )
        scores = np.einsum("thd,shd->hts", q, k) + bias
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        heads = np.einsum("hts,shd->thd", attention, v).reshape(len(x), -1)
        return heads @ weights[f"{name}.o.weight"].T

    length = range(len(x))
    buckets = np.array([[bucket(j - i, is_decoder) for j in length] for i in length])
    mask = np.where(np.tri(len(x), dtype=bool) | (not is_decoder), 0.0, -np.inf)
    depth = DECODER_LAYERS if is_decoder else LAYERS
    for block in range(depth):
        layers = f"{stack}.block.{block}.layer"
        table = weights.get(f"{layers}.0.SelfAttention.relative_attention_bias.weight")
        if table is not None:
            bias = np.moveaxis(table[buckets], -1, 0) + mask
        y = norm(f"{layers}.0.layer_norm", x)
        x = x + attend(f"{layers}.0.SelfAttention", y, y, bias)
        if is_decoder:
            y = norm(f"{layers}.1.layer_norm", x)
            x = x + attend(f"{layers}.1.EncDecAttention", y, memory, np.zeros(()))
        ffn = f"{layers}.{2 if is_decoder else 1}"
        y = norm(f"{ffn}.layer_norm", x)
        if f"{ffn}.DenseReluDense.wi.weight" in weights:
            hidden = activation(y @ weights[f"{ffn}.DenseReluDense.wi.weight"].T)
        else:
            hidden = activation(y @ weights[f"{ffn}.DenseReluDense.wi_0.weight"].T)
            hidden = hidden * (y @ weights[f"{ffn}.DenseReluDense.wi_1.weight"].T)
        x = x + hidden @ weights[f"{ffn}.DenseReluDense.wo.weight"].T
    return norm(f"{stack}.final_layer_norm", x)
