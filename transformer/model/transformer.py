"""The whole model (Figure 1): encoder, decoder, shared embeddings, logits."""

import functools

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.model.cache import DecodingCache
from transformer.model.embedding import Embedding, TokenModel
from transformer.model.stacks import Decoder, Encoder, Stack

# Whether both languages share one embedding table, and whether the target's table is also the
# projection to logits.
SHARE_EMBEDDINGS = {"all": (True, True), "target": (False, True), "none": (False, False)}


class Transformer(TokenModel):
    """Maps source and target tokens to the logits of each next target token.

    Dropout is applied if `rngs` is given (with a stream named "dropout"). Packed rows need segments
    and positions; without these, a row is one sentence, padded at its end.
    """

    def __init__(
        self, config: Config, source_vocab_size: int, target_vocab_size: int, *, rngs: nnx.Rngs
    ):
        """Raises ValueError if a shared table would need two sizes."""
        is_shared, is_tied = SHARE_EMBEDDINGS[config.share_embeddings]
        if is_shared and source_vocab_size != target_vocab_size:
            raise ValueError(
                f"share_embeddings=all needs one vocabulary, not {source_vocab_size} and {target_vocab_size} tokens"
            )
        make_embedding = functools.partial(
            Embedding, d_model=config.d_model, dtype=config.dtype, rngs=rngs
        )
        target_embedding = make_embedding(target_vocab_size)
        source_embedding = target_embedding if is_shared else make_embedding(source_vocab_size)
        self.encoder = Encoder(config, source_embedding, rngs=rngs)
        self.decoder = Decoder(config, target_embedding, cross_attention=True, rngs=rngs)
        self.set_output(config, target_embedding, target_vocab_size, is_tied, rngs)

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
        memory = self.encoder(
            source, segments=source_segments, positions=source_positions, rngs=rngs
        )
        source_segments = self.encoder.visible_segments(source, source_segments)
        return self.decoder(
            target_input, memory, source_segments, target_segments, target_positions, rngs
        )

    def start_cache(self, source: Int[Array, "B S"], beams: int, length: int) -> DecodingCache:
        """Encodes the source for `beams` hypotheses per sentence of at most `length` tokens, BOS
        included.
        """
        segments = self.encoder.visible_segments(source)
        return self.decoder.start_cache(
            self.encoder(source), segments, source.shape[0], beams, length
        )

    def decode_step(
        self, tokens: Int[Array, "B K"], position: Int[Array, ""], cache: DecodingCache
    ) -> tuple[Float[Array, "B K V"], DecodingCache]:
        """Returns the logits of the token after `tokens`, which are at `position` (BOS: 0) of each
        hypothesis.
        """
        x, cache = self.decoder.step(tokens, position, cache)
        return self.logits(x), cache


def attention_weights(model: nnx.Module, *inputs: Array) -> dict[str, Float[Array, "N B H Q K"]]:
    """Returns the attention weights of every layer (N) and head, computed by the modules that
    train.

    `model` is a Transformer, an Encoder, a Decoder or a module with attributes of these names, and
    `inputs` are its arguments, such as source and target_input. The result has the keys "encoder"
    (N B H S S), "decoder" (N B H T T) and "cross" (N B H T S), as far as the model has these
    attentions.
    """
    _, captured = nnx.capture(model, nnx.Intermediate)(*inputs)
    if isinstance(model, Stack):
        captured = nnx.State({"encoder" if isinstance(model, Encoder) else "decoder": captured})
    layers: dict[str, list[Array]] = {"encoder": [], "decoder": [], "cross": []}
    # in the order of the layers
    for (stack, *_, attention, _), weights in nnx.to_flat_state(captured):
        layers["cross" if attention == "cross_attention" else stack].append(weights.get_value()[0])
    return {name: jnp.stack(weights) for name, weights in layers.items() if weights}
