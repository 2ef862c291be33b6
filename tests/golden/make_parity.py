"""Writes tests/golden/parity.npz: logits and gradients of PyTorch's encoder and decoder stacks.

    .venv-bench/bin/python -m tests.golden.make_parity

It needs PyTorch, which `make bench` installs; the file was written with torch 2.13.0. The file has
the batch, the weights under our names, and for each case of CASES the logits and the gradients of
the summed cross-entropy with label smoothing 0.1. PyTorch computes them in float64, so that the
golden values have negligible rounding errors.
"""

import math
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).resolve().parent / "parity.npz"
D_MODEL, D_FF, HEADS, LAYERS, VOCAB = 16, 32, 2, 2, 20
PAD, BOS, EOS = 0, 2, 3
# (pre-norm, a norm after each stack). torch.nn.Transformer always has the latter.
CASES = {"post": (False, False), "post_final_norm": (False, True), "pre": (True, True)}
# PyTorch's module names and ours.
ENCODER_NORMS = {"norm1": "self_attention", "norm2": "feed_forward"}
DECODER_NORMS = {"norm1": "self_attention", "norm2": "cross_attention", "norm3": "feed_forward"}


class PyTorchTransformer(torch.nn.Module):
    """PyTorch's stacks with sinusoidal positions and one matrix for embeddings and logits."""

    def __init__(self, pre_norm: bool, final_norm: bool):
        super().__init__()
        options = {"dropout": 0.0, "batch_first": True, "norm_first": pre_norm}
        encoder_layer = torch.nn.TransformerEncoderLayer(D_MODEL, HEADS, D_FF, **options)
        decoder_layer = torch.nn.TransformerDecoderLayer(D_MODEL, HEADS, D_FF, **options)
        norms = [torch.nn.LayerNorm(D_MODEL) if final_norm else None for _ in range(2)]
        self.embedding = torch.nn.Embedding(VOCAB, D_MODEL)
        self.encoder = torch.nn.TransformerEncoder(
            encoder_layer, LAYERS, norms[0], enable_nested_tensor=False
        )
        self.decoder = torch.nn.TransformerDecoder(decoder_layer, LAYERS, norms[1])

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        position = torch.arange(tokens.shape[1], dtype=torch.float64)[:, None]
        angles = position / 10_000 ** (torch.arange(0, D_MODEL, 2, dtype=torch.float64) / D_MODEL)
        encoding = torch.zeros(tokens.shape[1], D_MODEL, dtype=torch.float64)
        encoding[:, 0::2], encoding[:, 1::2] = angles.sin(), angles.cos()
        return self.embedding(tokens) * math.sqrt(D_MODEL) + encoding

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        padding = source == PAD
        memory = self.encoder(self.embed(source), src_key_padding_mask=padding)
        length = target.shape[1]
        x = self.decoder(
            self.embed(target),
            memory,
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=padding,
        )
        return x @ self.embedding.weight.T


def our_names(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Returns PyTorch's weights or gradients under our names, with matrices transposed and
    projections unstacked.
    """
    ours = {"decoder/embedding/table": tensors["embedding.weight"]}
    for stack, norms in (("encoder", ENCODER_NORMS), ("decoder", DECODER_NORMS)):
        if f"{stack}.norm.weight" in tensors:
            ours |= norm(tensors, f"{stack}.norm", f"{stack}/final_norm")
        for i in range(LAYERS):
            theirs, layer = f"{stack}.layers.{i}", f"{stack}/layers/{i}"
            ours |= attention(tensors, f"{theirs}.self_attn", f"{layer}/self_attention")
            if stack == "decoder":
                ours |= attention(tensors, f"{theirs}.multihead_attn", f"{layer}/cross_attention")
            ours |= linear(tensors, f"{theirs}.linear1", f"{layer}/feed_forward/inner")
            ours |= linear(tensors, f"{theirs}.linear2", f"{layer}/feed_forward/outer")
            for name, sublayer in norms.items():
                ours |= norm(tensors, f"{theirs}.{name}", f"{layer}/{sublayer}_connection/norm")
    assert sum(x.numel() for x in ours.values()) == sum(x.numel() for x in tensors.values())
    return {name: tensor.numpy().astype(np.float32) for name, tensor in ours.items()}


def norm(tensors: dict[str, torch.Tensor], theirs: str, ours: str) -> dict[str, torch.Tensor]:
    return {f"{ours}/scale": tensors[f"{theirs}.weight"], f"{ours}/bias": tensors[f"{theirs}.bias"]}


def linear(tensors: dict[str, torch.Tensor], theirs: str, ours: str) -> dict[str, torch.Tensor]:
    return {
        f"{ours}/kernel": tensors[f"{theirs}.weight"].T,
        f"{ours}/bias": tensors[f"{theirs}.bias"],
    }


def attention(tensors: dict[str, torch.Tensor], theirs: str, ours: str) -> dict[str, torch.Tensor]:
    result = linear(tensors, f"{theirs}.out_proj", f"{ours}/output")
    kernels = tensors[f"{theirs}.in_proj_weight"].chunk(3)
    biases = tensors[f"{theirs}.in_proj_bias"].chunk(3)
    for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        result |= {f"{ours}/{name}/kernel": kernel.T, f"{ours}/{name}/bias": bias}
    return result


def draw_weights(random: np.random.Generator) -> dict[str, torch.Tensor]:
    """Draws weights that are exact in float32.

    No scale is 1 and no bias 0, so that a mix-up would show.
    """
    weights = {}
    for name, old in PyTorchTransformer(pre_norm=True, final_norm=True).named_parameters():
        values = random.normal(size=old.shape) * (0.25 if old.ndim > 1 else 0.1)
        is_scale = "norm" in name and name.endswith("weight")
        weights[name] = torch.tensor((values + is_scale).astype(np.float32).astype(np.float64))
    return weights


def draw_batch(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Draws three pairs of different lengths; on the source side even the longest is padded."""
    source, target = np.full((3, 8), PAD), np.full((3, 6), PAD)
    target_input = target.copy()
    for row, (source_length, target_length) in enumerate([(6, 3), (2, 5), (4, 1)]):
        tokens = random.integers(4, VOCAB, source_length + target_length)
        source[row, : source_length + 1] = [*tokens[:source_length], EOS]
        target[row, : target_length + 1] = [*tokens[source_length:], EOS]
        target_input[row, : target_length + 1] = [BOS, *tokens[source_length:]]
    return {"source": source, "target_input": target_input, "target_output": target}


def main() -> None:
    torch.set_default_dtype(torch.float64)
    random = np.random.default_rng(0)
    batch, weights = draw_batch(random), draw_weights(random)
    tensors = {name: torch.tensor(array) for name, array in batch.items()}
    golden = {name: array.astype(np.int32) for name, array in batch.items()}
    golden |= {f"weights/{name}": array for name, array in our_names(weights).items()}
    for case, (pre_norm, final_norm) in CASES.items():
        model = PyTorchTransformer(pre_norm, final_norm)
        model.load_state_dict({name: weights[name] for name in model.state_dict()})
        logits = model(tensors["source"], tensors["target_input"])
        targets = tensors["target_output"].flatten()
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets, ignore_index=PAD, reduction="sum", label_smoothing=0.1
        )
        loss.backward()
        gradients = our_names(
            {name: parameter.grad for name, parameter in model.named_parameters()}
        )
        golden |= {f"{case}/gradients/{name}": array for name, array in gradients.items()}
        golden[f"{case}/loss"] = np.float32(loss.item())
        golden[f"{case}/logits"] = logits.detach().numpy().astype(np.float32)
    np.savez_compressed(GOLDEN, **golden)
    print(f"{GOLDEN.name}: {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
