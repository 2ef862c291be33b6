"""Forced decoding: the log-probabilities that models give to known translations."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding import ensemble
from transformer.decoding.batches import make_batches, pad
from transformer.errors import UserError
from transformer.model.transformer import Transformer
from transformer.special_tokens import BOS, EOS, PAD


@dataclass(frozen=True)
class TargetScore:
    """Log-probabilities of a target's tokens, EOS included, in nats: of each token, and their sum."""

    token_log_probabilities: tuple[float, ...]
    log_probability: float


def score_tokens(
    models: Sequence[Transformer], source: Int[Array, "B S"], target: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Returns the log-probability of each token of `target` given the source and the tokens before it; 0 at PAD.

    Rows of `source` and `target` end with EOS and are padded with PAD. Probabilities of several models are averaged.
    """
    start = jnp.full((target.shape[0], 1), BOS, target.dtype)
    target_input = jnp.concatenate([start, target[:, :-1]], axis=1)
    log_p = ensemble.log_probabilities([model(source, target_input) for model in models])
    return jnp.where(target == PAD, 0.0, jnp.take_along_axis(log_p, target[:, :, None], axis=2)[:, :, 0])


class Scorer:
    """Scores pairs of texts with one model, or with an ensemble of models that share a tokenizer."""

    def __init__(self, graphs: Sequence[nnx.GraphDef], tokenizer: Tokenizer, config: Config):
        """`config` is the group `config.decoding`. A side has at most max_source_length + max_extra_length tokens."""
        self.graphs, self.tokenizer, self.config = tuple(graphs), tokenizer, config
        self.longest = config.max_source_length + config.max_extra_length
        self.score_batch = jax.jit(
            lambda parameters, *pair: score_tokens(ensemble.build_models(self.graphs, parameters), *pair)
        )

    def score(self, parameters: Sequence[dict], sources: Sequence[str], targets: Sequence[str]) -> list[TargetScore]:
        """Returns the score of each target, in order.

        Args:
          parameters: of each model, on the device.
          sources, targets: line N of one is a translation of line N of the other.

        Raises:
          UserError: a line is too long; the message has its number.
        """
        source_tokens = self._encode(self.tokenizer.source.encode(sources), "source")
        target_tokens = self._encode(self.tokenizer.target.encode(targets), "target")
        pairs = zip(source_tokens, target_tokens, strict=True)
        lengths = {i: max(map(len, pair)) for i, pair in enumerate(pairs)}
        scores: list[TargetScore] = [TargetScore((), 0.0)] * len(lengths)
        for batch in make_batches(lengths, self.longest, 0, self.config.batch_tokens):
            sides = [
                pad([tokens[i] for i in batch.indices], batch.rows, batch.length)
                for tokens in (source_tokens, target_tokens)
            ]
            rows = np.asarray(self.score_batch(tuple(parameters), *sides))
            for row, i in zip(rows, batch.indices, strict=False):
                log_p = tuple(row[: len(target_tokens[i])].tolist())
                scores[i] = TargetScore(log_p, sum(log_p))
        return scores

    def _encode(self, sequences: list[list[int]], side: str) -> list[list[int]]:
        for line, tokens in enumerate(sequences, start=1):
            if len(tokens) >= self.longest:
                raise UserError(
                    f"{side} line {line}: has {len(tokens) + 1} tokens including end-of-sentence, must have at most "
                    f"{self.longest}; raise decoding.max_source_length"
                )
        return [[*tokens, EOS] for tokens in sequences]
