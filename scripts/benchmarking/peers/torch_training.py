"""A training step of PyTorch's nn.Transformer, eager or compiled, in float32 or bfloat16 autocast.

Dropout has the places of the paper: embeddings and outputs of sub-layers. Without dropout of
attention weights PyTorch can use its fused attention. The loss skips padding. The target does not
need a padding mask, since its padding comes last.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.benchmarking.worker import Prepared, Task


def prepare(task: Task) -> Prepared:
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)

    # The decoder reads the target behind BOS.
    shifted = [[task["bos"], *row[:-1]] for row in task["target"]]
    source = pad(task["source"], task["pad"])
    target = pad(task["target"], task["pad"])
    target_input = pad(shifted, task["pad"])

    model = Translation(task).train()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )

    # Parameters stay in float32; autocast computes matmuls in bfloat16.
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=task["dtype"] == "bfloat16")
    loss_of = torch.compile(model) if task["compile"] else model

    def repeat() -> None:
        with autocast:
            loss = loss_of(source, target_input, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    tokens = int((target != task["pad"]).sum())
    return Prepared(repeat, tokens, f"PyTorch {torch.__version__}")


def pad(rows: Sequence[Sequence[int]], padding: int) -> Tensor:
    tensors = list(map(torch.tensor, rows))
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=padding)  # (B, L)


class Translation(nn.Module):
    """The paper's model with its loss. One matrix serves both embeddings and the logits."""

    def __init__(self, task: Task):
        super().__init__()
        self.pad = task["pad"]
        self.rate = task["dropout"]
        self.label_smoothing = task["label_smoothing"]
        width = task["d_model"]

        # PyTorch has dropout in more places than the paper. It is switched off in these.
        settings = (width, task["num_heads"], task["d_ff"], task["dropout"])
        encoder_layer = nn.TransformerEncoderLayer(*settings, batch_first=True)
        decoder_layer = nn.TransformerDecoderLayer(*settings, batch_first=True)
        for layer in (encoder_layer, decoder_layer):
            layer.dropout = nn.Identity()  # between the two layers of the feed-forward network
            layer.self_attn.dropout = 0.0
        decoder_layer.multihead_attn.dropout = 0.0

        num_layers = task["num_layers"]
        encoder = nn.TransformerEncoder(encoder_layer, num_layers, enable_nested_tensor=False)
        self.transformer = nn.Transformer(
            width,
            task["num_heads"],
            custom_encoder=encoder,
            custom_decoder=nn.TransformerDecoder(decoder_layer, num_layers),
            batch_first=True,
        )

        # One embedding table, initialized for the scale of sqrt(d_model) (section 3.4).
        self.embedding = nn.Embedding(task["vocab_size"], width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

        # Section 3.5: sines and cosines of each angle, in turns.
        longest = max(map(len, [*task["source"], *task["target"]]))
        angles = torch.arange(longest)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (L, d_model)
        self.register_buffer("positions", positions)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(longest))

    def forward(self, source: Tensor, target_input: Tensor, target: Tensor) -> Tensor:
        # A float mask: 0 at tokens and -inf at padding.
        is_padding = torch.zeros(source.shape).masked_fill(source == self.pad, -math.inf)
        length = target.shape[1]
        outputs = self.transformer(
            self.embed(source),
            self.embed(target_input),
            tgt_mask=self.causal[:length, :length],
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )

        logits = functional.linear(outputs, self.embedding.weight)
        return functional.cross_entropy(
            logits.flatten(0, 1),
            target.flatten(),
            ignore_index=self.pad,
            label_smoothing=self.label_smoothing,
        )

    def embed(self, tokens: Tensor) -> Tensor:
        vectors = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        vectors = vectors + self.positions[: tokens.shape[1]]
        return functional.dropout(vectors, self.rate, self.training)
