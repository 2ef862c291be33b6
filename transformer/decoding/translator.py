"""Texts to translations: into pieces, into batches, through the search, and back in order."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import Array, Int

from transformer.data.tokenizer import EOS, PAD, Tokenizer
from transformer.decoding import batches, ensemble
from transformer.decoding.beam_search import Hypotheses, beam_search
from transformer.decoding.sampling import sample, sample_keys
from transformer.errors import UserError

LAUNCHED_AHEAD = 2  # batches whose search is under way while the texts of earlier ones are put together


@dataclass(frozen=True)
class Translation:
    """One line of text and what it was made of.

    tokens: pieces without end-of-sentence. log_probability: of the pieces and end-of-sentence together, in nats.
    score: log-probability / ((5 + length) / 6)^length_penalty, with the length of pieces and end-of-sentence.
    """

    text: str
    tokens: tuple[int, ...]
    log_probability: float
    score: float


EMPTY = Translation("", (), 0.0, 0.0)


class Translator:
    """Translates with one model, or with the average of several that share a tokenizer.

    It compiles one function a bucket of source lengths and keeps them: parameters are arguments, so that training
    can validate again and again with one translator.
    """

    def __init__(
        self,
        graphs: Sequence[nnx.GraphDef],
        tokenizer: Tokenizer,
        config: ml_collections.ConfigDict | ml_collections.FrozenConfigDict,
        n_best: int,
    ):
        """`config` is the group `config.decoding`. Raises UserError if the beam has no `n_best` hypotheses."""
        if config.strategy == "beam" and n_best > config.beam_size:
            raise UserError(
                f"--n_best={n_best}: must be at most decoding.beam_size={config.beam_size}; raise decoding.beam_size"
            )
        self.graphs, self.tokenizer, self.config, self.n_best = tuple(graphs), tokenizer, config, n_best
        self.beams = config.beam_size if config.strategy == "beam" else n_best
        self.search = jax.jit(self._search)

    def translate(
        self,
        parameters: Sequence[dict],
        texts: Sequence[str],
        first_line: int,
        report: Callable[[int], None],
    ) -> list[list[Translation]]:
        """The `n_best` translations of each text, best first (samples: in the order drawn).

        Args:
          parameters: of each model, as `nnx.to_pure_dict` gives them.
          texts: a line each. One without pieces, such as an empty line, has empty translations.
          first_line: the number of the first text; warnings and samples' random numbers go by it.
          report: is told how many more texts are finished, each time some are.
        """
        sources = self._encode(texts, first_line)
        translations = [[EMPTY] * self.n_best for _ in texts]
        plan = batches.plan(
            [len(source) for source in sources], self.config.max_source_length, self.config.batch_tokens // self.beams
        )
        report(sum(not source for source in sources))
        for batch, hypotheses in self._decode(tuple(parameters), plan, sources, first_line):
            for row, index in enumerate(batch.indices):
                translations[index] = self._read(*(array[row] for array in hypotheses))
            report(len(batch.indices))
        return translations

    def _encode(self, texts: Sequence[str], first_line: int) -> list[list[int]]:
        """Pieces with end-of-sentence of each text, cut to what positions allow; nothing for a text without pieces."""
        longest = self.config.max_source_length
        sources = []
        for line, text in enumerate(texts, start=first_line):
            try:
                (pieces,) = self.tokenizer.encode_source([text])
            except UserError as error:
                raise UserError(f"line {line}: {error}") from error
            if len(pieces) >= longest:
                logging.warning(
                    "Line %d has %d pieces with its end; the first %d are translated (decoding.max_source_length=%d).",
                    *(line, len(pieces) + 1, longest - 1, longest),
                )
            sources.append([*pieces[: longest - 1], EOS] if pieces else [])
        return sources

    def _decode(
        self, parameters: tuple[dict, ...], plan: list[batches.Batch], sources: list[list[int]], first_line: int
    ) -> Iterator[tuple[batches.Batch, Hypotheses]]:
        """Batches and what was found, in NumPy arrays. While one is read the next are being searched."""
        launched: deque[tuple[batches.Batch, Hypotheses]] = deque()
        for batch in plan:
            source = batches.pad([sources[i] for i in batch.indices], batch.rows, batch.length)
            lines = np.zeros(batch.rows, np.int32)
            lines[: len(batch.indices)] = np.array(batch.indices) + first_line
            launched.append((batch, self.search(parameters, source, lines)))
            if len(launched) > LAUNCHED_AHEAD:
                done, hypotheses = launched.popleft()
                yield done, jax.device_get(hypotheses)
        for batch, hypotheses in launched:
            yield batch, jax.device_get(hypotheses)

    def _search(self, parameters: tuple[dict, ...], source: Int[Array, "B S"], lines: Int[Array, "B"]) -> Hypotheses:
        config = self.config
        models = ensemble.merge(self.graphs, parameters)
        # A filler row has no end-of-sentence: its limit comes out negative.
        lengths = (source != PAD).sum(axis=1) - 1
        limits = jnp.where(lengths < 0, -1, lengths + config.max_extra_length)
        shared = {"length_penalty": config.length_penalty, "max_length": source.shape[1] + config.max_extra_length}
        if config.strategy == "beam":
            return beam_search(models, source, limits, beam_size=self.beams, n_best=self.n_best, **shared)
        keys = sample_keys(config.seed, lines, self.n_best)
        return sample(
            models,
            source,
            limits,
            keys,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            **shared,
        )

    def _read(self, tokens: Int[np.ndarray, "N L"], scores: np.ndarray, log_probabilities: np.ndarray) -> list:
        """The translations of one sentence; fewer than `n_best` if there are not so many outputs, at least one."""
        found = np.isfinite(scores)
        if not found.any():
            return [EMPTY]
        outputs = [tuple(row[: np.argmax(row == EOS)].tolist()) for row in tokens[found]]
        texts = [" ".join(text.splitlines()) for text in self.tokenizer.decode_target(outputs)]
        log_probabilities, scores = log_probabilities[found].tolist(), scores[found].tolist()
        return [Translation(*parts) for parts in zip(texts, outputs, log_probabilities, scores, strict=True)]
