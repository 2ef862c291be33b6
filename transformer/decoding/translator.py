"""Texts to translations: into pieces, into batches, through the search, and back in order."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int

from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding import batches, ensemble
from transformer.decoding.beam_search import Hypotheses, beam_search
from transformer.decoding.sampling import sample, sample_keys
from transformer.distributed.sharding import place_rows
from transformer.errors import UserError
from transformer.special_tokens import EOS, PAD

MARGIN = 8  # tokens an output may be longer than its bucket's sources in the first pass
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

    A step costs the more the longer outputs may get, and a batch takes as many steps as its slowest sentence. So the
    first pass leaves room for outputs somewhat longer than their sources; the few sentences that are not done by then
    are searched anew, together, with room for the longest output. Which pass a sentence is done in is its own affair,
    so its translation does not depend on its neighbours.

    It compiles one function for each bucket of source lengths and pass, when first needed, and keeps them: parameters
    are arguments, so that training can validate again and again with one translator.
    """

    def __init__(
        self,
        graphs: Sequence[nnx.GraphDef],
        tokenizer: Tokenizer,
        config: Config,
        n_best: int,
        mesh: Mesh,
    ):
        """`config` is the group `config.decoding`; the devices of `mesh` share the rows.

        Raises UserError if the beam has no `n_best` hypotheses.
        """
        if config.strategy == "beam" and n_best > config.beam_size:
            raise UserError(
                f"--n_best={n_best}: must be at most decoding.beam_size={config.beam_size}; raise decoding.beam_size"
            )
        self.graphs, self.tokenizer, self.config, self.n_best = tuple(graphs), tokenizer, config, n_best
        self.beams = config.beam_size if config.strategy == "beam" else n_best
        self.mesh = mesh
        # Every process reads all that was found.
        self.search = jax.jit(
            self._search, static_argnames="max_length", out_shardings=NamedSharding(mesh, PartitionSpec())
        )

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
        waiting = [i for i, source in enumerate(sources) if source]
        report(len(texts) - len(waiting))
        for room in (min(MARGIN, self.config.max_extra_length), self.config.max_extra_length):
            found: set[int] = set()
            for batch, (hypotheses, done) in self._decode(tuple(parameters), waiting, sources, first_line, room):
                for row, index in enumerate(batch.indices):
                    if done[row]:
                        translations[index] = self._read(*(array[row] for array in hypotheses))
                        found.add(index)
                report(int(done[: len(batch.indices)].sum()))
            waiting = [i for i in waiting if i not in found]
        return translations

    def _encode(self, texts: Sequence[str], first_line: int) -> list[list[int]]:
        """Pieces of each text with its end, at most `decoding.max_source_length`; nothing for a text without pieces."""
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
        self, parameters: tuple[dict, ...], waiting: list[int], sources: list[list[int]], first_line: int, room: int
    ) -> Iterator[tuple[batches.Batch, tuple[Hypotheses, np.ndarray]]]:
        """Batches of the waiting sentences and what was found, in NumPy arrays. The next are searched meanwhile."""
        lengths = {i: len(sources[i]) for i in waiting}
        launched: deque[tuple[batches.Batch, tuple[Hypotheses, Array]]] = deque()
        tokens = self.config.batch_tokens // self.beams
        for batch in batches.plan(lengths, self.config.max_source_length, room, tokens):
            source = batches.pad([sources[i] for i in batch.indices], batch.rows, batch.length)
            lines = np.zeros(batch.rows, np.int32)
            lines[: len(batch.indices)] = np.array(batch.indices) + first_line
            placed = place_rows({"source": source, "lines": lines}, self.mesh)
            launched.append((batch, self.search(parameters, **placed, max_length=batch.length + room)))
            if len(launched) > LAUNCHED_AHEAD:
                first, result = launched.popleft()
                yield first, jax.device_get(result)
        for batch, result in launched:
            yield batch, jax.device_get(result)

    def _search(
        self, parameters: tuple[dict, ...], source: Int[Array, "B S"], lines: Int[Array, "B"], max_length: int
    ) -> tuple[Hypotheses, Bool[Array, "B"]]:
        config = self.config
        models = ensemble.merge(self.graphs, parameters)
        # A filler row has no end-of-sentence: its limit comes out negative.
        lengths = (source != PAD).sum(axis=1) - 1
        limits = jnp.where(lengths < 0, -1, lengths + config.max_extra_length)
        shared = {"length_penalty": config.length_penalty, "max_length": max_length}
        if config.strategy == "beam":
            return beam_search(models, source, limits, beam_size=self.beams, n_best=self.n_best, **shared)
        keys = sample_keys(config.seed, lines, self.n_best)
        choice = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        return sample(models, source, limits, keys, **choice, **shared)

    def _read(self, tokens: Int[np.ndarray, "N L"], scores: np.ndarray, log_probabilities: np.ndarray) -> list:
        """The translations of one sentence; fewer than `n_best` if there are not so many outputs, at least one."""
        found = np.isfinite(scores)
        if not found.any():
            return [EMPTY]
        outputs = [tuple(row[: np.argmax(row == EOS)].tolist()) for row in tokens[found]]
        texts = [" ".join(text.splitlines()) for text in self.tokenizer.decode_target(outputs)]
        log_probabilities, scores = log_probabilities[found].tolist(), scores[found].tolist()
        return [Translation(*parts) for parts in zip(texts, outputs, log_probabilities, scores, strict=True)]
