"""Forced decoding: how probable a model finds given translations."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding import batches, ensemble
from transformer.errors import UserError
from transformer.model.transformer import Transformer
from transformer.special_tokens import BOS, EOS, PAD


@dataclass(frozen=True)
class TargetScore:
    """log p of a target's pieces and of its end-of-sentence, in nats: one by one, and of all together."""

    token_log_probabilities: tuple[float, ...]
    log_probability: float


def score_tokens(
    models: Sequence[Transformer], source: Int[Array, "B S"], target: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """log p of every token of `target` (pieces + EOS, PAD after) given those before it and the source; 0 at PAD.

    Of several models, by the average of their probabilities.
    """
    start = jnp.full((target.shape[0], 1), BOS, target.dtype)
    target_input = jnp.concatenate([start, target[:, :-1]], axis=1)
    log_p = ensemble.log_probabilities([model(source, target_input) for model in models])
    return jnp.where(target == PAD, 0.0, jnp.take_along_axis(log_p, target[:, :, None], axis=2)[:, :, 0])


class Scorer:
    """Scores pairs of texts with one model, or with the average of several that share a tokenizer."""

    def __init__(
        self,
        graphs: Sequence[nnx.GraphDef],
        tokenizer: Tokenizer,
        config: Config,
    ):
        """`config` is the group `config.decoding`: a side may have max_source_length + max_extra_length pieces."""
        self.graphs, self.tokenizer, self.config = tuple(graphs), tokenizer, config
        self.longest = config.max_source_length + config.max_extra_length
        self.score_batch = jax.jit(self._score_batch)

    def score(self, parameters: Sequence[dict], sources: Sequence[str], targets: Sequence[str]) -> list[TargetScore]:
        """The score of each target, in order. Raises UserError, naming the line, for a side that is too long."""
        source_ids = self._encode(self.tokenizer.encode_source(sources), "source")
        target_ids = self._encode(self.tokenizer.encode_target(targets), "target")
        pairs = zip(source_ids, target_ids, strict=True)
        lengths = {i: max(map(len, pair)) for i, pair in enumerate(pairs)}
        scores: list[TargetScore] = [TargetScore((), 0.0)] * len(lengths)
        for batch in batches.plan(lengths, self.longest, 0, self.config.batch_tokens):
            sides = [
                batches.pad([ids[i] for i in batch.indices], batch.rows, batch.length)
                for ids in (source_ids, target_ids)
            ]
            rows = np.asarray(self.score_batch(tuple(parameters), *sides))
            for row, i in zip(rows, batch.indices, strict=False):
                log_p = tuple(row[: len(target_ids[i])].tolist())
                scores[i] = TargetScore(log_p, sum(log_p))
        return scores

    def _score_batch(
        self, parameters: tuple[dict, ...], source: Int[Array, "B S"], target: Int[Array, "B T"]
    ) -> Float[Array, "B T"]:
        return score_tokens(ensemble.merge(self.graphs, parameters), source, target)

    def _encode(self, sequences: list[list[int]], side: str) -> list[list[int]]:
        for line, pieces in enumerate(sequences, start=1):
            if len(pieces) >= self.longest:
                raise UserError(
                    f"{side} line {line}: {len(pieces) + 1} pieces with its end, at most {self.longest} can be scored; "
                    "raise decoding.max_source_length"
                )
        return [[*pieces, EOS] for pieces in sequences]
