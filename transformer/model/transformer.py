"""The whole model (Figure 1): encoder, decoder, shared embeddings, logits."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.model.cache import DecodingCache
from transformer.model.embedding import TokenModel, make_embedding
from transformer.model.stacks import Decoder, Encoder, Memory, Stack

# Two booleans. First: both languages share one embedding table. Second: the table of the target is
# also the projection to logits (section 3.4).
SHARE_EMBEDDINGS = {
    "all": (True, True),
    "target": (False, True),
    "inputs": (True, False),
    "none": (False, False),
}


class Transformer(TokenModel):
    """Maps source and target tokens to the logits of each next target token (`TokenModel`).

    Dropout is applied if `rngs` is given, with a stream named "dropout". Packed rows need segments
    and positions. Without these, a row is one sentence, padded at its end.
    """

    def __init__(
        self,
        model_config: Config,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        rngs: nnx.Rngs,
    ):
        is_shared, is_tied = SHARE_EMBEDDINGS[model_config.share_embeddings]
        # Section 3.4: "we share the same weight matrix between the two embedding layers and the
        # pre-softmax linear transformation".
        target_embedding = make_embedding(model_config, target_vocab_size, rngs)
        source_embedding = target_embedding
        if not is_shared:
            source_embedding = make_embedding(model_config, source_vocab_size, rngs)
        self.encoder = Encoder(model_config, source_embedding, rngs=rngs)
        self.decoder = Decoder(model_config, target_embedding, cross_attention=True, rngs=rngs)
        self.set_output(model_config, target_embedding, target_vocab_size, is_tied, rngs)

    def hidden(
        self,
        source: Int[Array, "B S"],
        target_input: Int[Array, "B T"],
        source_segments: Int[Array, "B S"] | None = None,
        target_segments: Int[Array, "B T"] | None = None,
        source_positions: Int[Array, "#B S"] | None = None,
        target_positions: Int[Array, "#B T"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the decoder's output."""
        memory = self.encode(source, source_segments, source_positions, rngs)
        return self.decoder(target_input, memory, target_segments, target_positions, rngs)

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        positions: Int[Array, "#B S"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Memory:
        """Returns the encoder's output."""
        vectors = self.encoder(source, segments=segments, positions=positions, rngs=rngs)
        # Cross-attention sees the tokens that the encoder's own attention sees.
        return Memory(vectors, self.encoder.visible_segments(source, segments))

    def start_cache(self, source: Int[Array, "B S"], beams: int, length: int) -> DecodingCache:
        """Encodes the source, and returns an empty cache of the decoder.

        The cache is for `beams` hypotheses per sentence of at most `length` tokens, BOS included.
        """
        rows = source.shape[0]  # which len() cannot return for an exported program of any size
        return self.decoder.start_cache(self.encode(source), rows, beams, length)

    def decode_step(
        self,
        tokens: Int[Array, "B K"],
        position: Int[Array, ""],
        cache: DecodingCache,
    ) -> tuple[Float[Array, "B K V"], DecodingCache]:
        """Returns the logits of the tokens that follow `tokens`, and the new cache.

        All hypotheses have their token at the same `position`; BOS is at 0.
        """
        x, cache = self.decoder.step(tokens, position, cache)
        return self.logits(x), cache


def attention_weights(model: nnx.Module, *inputs: Any) -> dict[str, Float[Array, "N B H Q K"]]:
    """Returns the attention weights of every layer (N) and head, by the modules that train.

    `model` is a Transformer, an Encoder, a Decoder or a module with attributes of these names.
    `inputs` are its arguments, such as source and target_input. The result has the keys "encoder"
    (N, B, H, S, S), "decoder" (N, B, H, T, T) and "cross" (N, B, H, T, S), except for attentions
    that the model lacks.
    """
    _, captured = nnx.capture(model, nnx.Intermediate)(*inputs)
    if isinstance(model, Stack):
        captured = nnx.State({"encoder" if isinstance(model, Encoder) else "decoder": captured})

    layers: dict[Any, list[Array]] = {"encoder": [], "decoder": [], "cross": []}
    # The paths, such as (decoder, layers, 0, cross_attention, weights), are in order of the layers.
    for (stack, *_, attention, _), weights in nnx.to_flat_state(captured):
        kind = "cross" if attention == "cross_attention" else stack
        layers[kind].append(weights.get_value()[0])
    return {kind: jnp.stack(weights) for kind, weights in layers.items() if weights}
