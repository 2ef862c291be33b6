"""Forced decoding: the log-probabilities that models give to known translations."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding import ensemble
from transformer.decoding.batches import map_rows
from transformer.decoding.beam_search import penalty
from transformer.decoding.parallel import DeviceQueues
from transformer.decoding.replicas import Replicas
from transformer.decoding.translation import Translation
from transformer.errors import UserError
from transformer.model.transformer import Transformer
from transformer.special_tokens import BOS, EOS, PAD


def score_tokens(
    models: Sequence[Transformer], source: Int[Array, "B S"], target: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Returns the log-probability of each token of `target` given the source and the tokens before it; 0 at PAD.

    Rows of `source` and `target` end with EOS and are padded with PAD. Probabilities of several models are averaged.
    """
    log_p = ensemble.log_probabilities([model(source, shift_right(target)) for model in models])
    return jnp.where(target == PAD, 0.0, jnp.take_along_axis(log_p, target[:, :, None], axis=2)[:, :, 0])


def shift_right(target: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns the decoder's input that predicts `target`: BOS, and all tokens but the last."""
    return jnp.concatenate([jnp.full((target.shape[0], 1), BOS, target.dtype), target[:, :-1]], axis=1)


class Scorer:
    """Scores pairs of texts with one model, or with an ensemble of models that share a tokenizer."""

    def __init__(
        self, graphs: Sequence[nnx.GraphDef], tokenizer: Tokenizer, config: Config, devices: Sequence[jax.Device]
    ):
        """`config` is the group `config.decoding`; the devices are local ones."""
        self.tokenizer, self.config, self.pieces = tokenizer, config, tokenizer.target.pieces
        graphs = tuple(graphs)
        self.score_batch = DeviceQueues(
            lambda parameters, *pair: score_tokens(ensemble.build_models(graphs, parameters), *pair), devices, ()
        )

    def score(self, replicas: Replicas, pairs: Sequence[tuple[str, str]]) -> list[Translation]:
        """Returns the target of each pair, in order, with the scores that the models give to it.

        Args:
          replicas: the parameters of the models.
          pairs: a source and a target each. A side without tokens is EOS only.

        Raises:
          UserError: a text is too long; the message names it.
        """
        sources, targets = (
            encode(vocabulary, {f"pairs[{i}][{side}]": pair[side] for i, pair in enumerate(pairs)}, self.config)
            for side, vocabulary in enumerate((self.tokenizer.source, self.tokenizer.target))
        )
        found = {}
        longest, max_positions = longest_text(self.config), self.config.batch_tokens
        for i, row in map_rows(self.score_batch, replicas, [sources, targets], longest, max_positions):
            (_, text), tokens = pairs[i], targets[i]
            each, pieces = tuple(row[: len(tokens)].tolist()), tuple(self.pieces[token] for token in tokens)
            score = sum(each) / penalty(len(tokens), self.config.length_penalty)
            found[i] = Translation(text, tuple(tokens), pieces, each, sum(each), score)
        return [found[i] for i in range(len(pairs))]


def longest_text(config: Config) -> int:
    """Returns the most tokens, EOS included, that a known text may have: those of the longest output of the search."""
    return config.max_source_length + config.max_extra_length


def encode(vocabulary: Vocabulary, texts: Mapping[str, str], config: Config) -> list[list[int]]:
    """Returns the tokens of each text, and EOS. `texts` maps the names of texts in messages to the texts.

    Raises:
      UserError: a text has more than `longest_text` tokens, or the vocabulary cannot encode it.
    """
    sequences = []
    for name, text in texts.items():
        try:
            (tokens,) = vocabulary.encode([text])
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        if len(tokens) >= longest_text(config):
            raise UserError(
                f"{name}: has {len(tokens) + 1} tokens including end-of-sentence, must have at most "
                f"{longest_text(config)}; shorten it, or raise decoding.max_source_length={config.max_source_length}"
            )
        sequences.append([*tokens, EOS])
    return sequences
