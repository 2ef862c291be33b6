"""Translation of texts: tokenization, batching, search, and detokenization in the original order."""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer.config_types import Config
from transformer.data.corpus.workers import num_workers
from transformer.data.sources.lines import counted
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding import ensemble
from transformer.decoding.batches import SHORTEST, DecodingBatch, make_batches, pad
from transformer.decoding.beam_search import Hypotheses
from transformer.decoding.parallel import DeviceQueues
from transformer.decoding.replicas import Replicas
from transformer.decoding.shortlist import Shortlist
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.translation import EMPTY, Translation
from transformer.errors import UserError
from transformer.special_tokens import EOS, PAD

FIRST_EXTRA_LENGTH = 8  # `extra_lengths` of the first pass, at most
SHORTEST_OF_SECOND = 64  # padded length of the second pass: it has few sentences, and most have this program in common


def encode_source(
    vocabulary: Vocabulary, name: str, text: str, longest: int, warn: Callable[..., None] = logging.warning
) -> list[int]:
    """Returns the tokens of a text and EOS, cut to `longest` with a warning; [] for a text without tokens.

    Calls `warn` as a method of a logger. Raises UserError, with the text's name, if the vocabulary cannot encode it.
    """
    try:
        (tokens,) = vocabulary.encode([text])
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    if len(tokens) >= longest:
        warn(
            "%s has %d tokens including end-of-sentence; only the first %d are translated "
            "(decoding.max_source_length=%d).",
            *(name.capitalize(), len(tokens) + 1, longest - 1, longest),
        )
    return [*tokens[: longest - 1], EOS] if tokens else []


class Translator:
    """Translates with one model, or with an ensemble of models that share a tokenizer.

    The cost of a step grows with the longest output allowed, and a batch takes as many steps as its slowest sentence.
    So a search by steps has two passes. The first allows outputs slightly longer than the sources. The second searches
    the few unfinished sentences again, with the full length. A sentence's pass does not depend on its neighbours, and
    so neither does its translation.

    The devices share the batches, so a slow sentence delays one device only. One function is compiled for each padded
    source length and pass, ahead or when a call of `translate` first needs it. Parameters are arguments, so that
    training can validate many times with one translator.
    """

    def __init__(
        self,
        graphs: Sequence[nnx.GraphDef],
        tokenizer: Tokenizer,
        config: Config,
        n_best: int,
        devices: Sequence[jax.Device],
        shortlist: Shortlist | None = None,
    ):
        """`config` is the group `config.decoding`; the devices are local ones; None searches the whole vocabulary.

        Raises UserError if the search keeps fewer than `n_best` hypotheses.
        """
        self.strategy = STRATEGIES[config.strategy]
        self.num_hypotheses = self.strategy.num_hypotheses(config, n_best)
        if n_best > self.num_hypotheses:
            raise UserError(
                f"--n_best={n_best}: must be at most decoding.beam_size={config.beam_size}; raise decoding.beam_size"
            )
        self.graphs, self.tokenizer, self.config, self.n_best = tuple(graphs), tokenizer, config, n_best
        self.pieces, self.shortlist = tokenizer.target.pieces, shortlist
        self.num_found = 1 if n_best == 1 else self.num_hypotheses  # spare ones replace those of equal text
        self.search = DeviceQueues(self._search, devices, static_argnames=["extra_length"])
        self.compile_seconds, self.cut_lines = 0.0, 0

    def translate(
        self,
        replicas: Replicas,
        texts: Sequence[str],
        first_line: int,
        report: Callable[[int], None],
    ) -> list[list[Translation]]:
        """Returns the `n_best` translations of each text, best first (samples: in the order drawn).

        Args:
          replicas: the parameters of the models.
          texts: one sentence each. A text without tokens, such as an empty line, has empty translations.
          first_line: line number of the first text, for warnings and for the samples' random numbers.
          report: called with the number of texts that have just been finished.
        """
        sources = self._encode(texts, first_line, self._warn_once)
        translations = [[EMPTY] * self.n_best for _ in texts]
        pending = [i for i, source in enumerate(sources) if source]
        report(len(texts) - len(pending))
        for extra_length in self.extra_lengths:
            if not pending:
                break
            finished: set[int] = set()
            lengths = {i: len(sources[i]) for i in pending}
            self._compile(self._jobs(replicas.on(self.search.devices[0]), lengths, extra_length))
            with contextlib.closing(self._decode(replicas, lengths, sources, first_line, extra_length)) as decoded:
                for batch, (hypotheses, done) in decoded:
                    for row, index in enumerate(batch.indices):
                        if done[row]:
                            translations[index] = self._read(*(array[row] for array in hypotheses))
                            finished.add(index)
                    report(int(done[: len(batch.indices)].sum()))
            pending = [i for i in pending if i not in finished]
        return translations

    @property
    def extra_lengths(self) -> tuple[int, ...]:
        """Tokens by which an output may exceed its batch's source length, in each pass."""
        if not self.strategy.takes_steps:
            return (0,)
        longest = self.config.max_extra_length
        return (longest,) if longest <= FIRST_EXTRA_LENGTH else (FIRST_EXTRA_LENGTH, longest)

    def compilations(self, parameters: Sequence[dict], texts: Sequence[str]) -> list[Callable[[], object]]:
        """Returns functions that each compile a program that `translate` may need for the texts, by either pass.

        `parameters` are those of each model before their conversion by `Replicas`; arrays may be abstract.
        """
        abstract = Replicas.abstract(self.graphs, parameters)
        lengths = {i: len(source) for i, source in enumerate(self._encode(texts, 1, lambda *_: None)) if source}
        return [job for extra_length in self.extra_lengths for job in self._jobs(abstract, lengths, extra_length)]

    def _jobs(
        self, abstract: tuple[dict, ...], lengths: dict[int, int], extra_length: int
    ) -> list[Callable[[], object]]:
        """Returns functions that each compile a program of one pass, given the shapes of `Replicas.abstract`."""
        batches, jobs = self._batches(lengths, extra_length), []
        shapes = {(batch.rows, batch.length) for batch in batches}
        for device, shape in itertools.product(self.search.devices[: len(batches)], sorted(shapes, reverse=True)):
            arrays = self._arrays(DecodingBatch(*shape, indices=[]), [], first_line=0)
            jobs.append(functools.partial(self.search.program, device, abstract, arrays, extra_length=extra_length))
        return jobs

    def _compile(self, jobs: Sequence[Callable[[], object]]) -> None:
        """Calls the jobs in threads, and adds the time to `compile_seconds`."""
        began = time.perf_counter()
        with ThreadPoolExecutor(num_workers(0), "compile") as pool:
            for future in [pool.submit(job) for job in jobs]:
                future.result()
        self.compile_seconds += time.perf_counter() - began

    def log_cut_lines(self) -> None:
        """Logs how many lines `translate` has cut, if it has not named all of them, and counts from 0 again."""
        if self.cut_lines > 1:
            longest = self.config.max_source_length
            logging.warning("%s are cut to decoding.max_source_length=%d.", counted(self.cut_lines, "line"), longest)
        self.cut_lines = 0

    def _warn_once(self, message: str, *values: object) -> None:
        """Logs the warning of the first line that is cut, and counts them."""
        self.cut_lines += 1
        if self.cut_lines == 1:
            logging.warning(message, *values)

    def _encode(self, texts: Sequence[str], first_line: int, warn: Callable[..., None]) -> list[list[int]]:
        """Returns the result of `encode_source` for each text."""
        vocabulary, longest = self.tokenizer.source, self.config.max_source_length
        lines = enumerate(texts, start=first_line)
        return [encode_source(vocabulary, f"line {line}", text, longest, warn) for line, text in lines]

    def _decode(
        self,
        replicas: Replicas,
        lengths: dict[int, int],
        sources: list[list[int]],
        first_line: int,
        extra_length: int,
    ) -> Iterator[tuple[DecodingBatch, tuple[Hypotheses, np.ndarray]]]:
        """Yields batches of the sentences in `lengths` with their hypotheses, and whether each row is done, in NumPy.

        Later batches are already being searched while the caller reads an earlier one.
        """

        # The longest first, so that the devices finish at about the same time.
        batches = self._batches(lengths, extra_length)[::-1]
        arrays_of = functools.partial(self._arrays, sources=sources, first_line=first_line)
        return self.search.map(replicas, batches, arrays_of, extra_length=extra_length)

    def _arrays(self, batch: DecodingBatch, sources: list[list[int]], first_line: int) -> tuple[np.ndarray, ...]:
        """Returns the sources of a batch, the numbers of their lines, and with a shortlist their candidates."""
        source = pad([sources[i] for i in batch.indices], batch.rows, batch.length)
        lines = np.zeros(batch.rows, np.int32)
        lines[: len(batch.indices)] = np.array(batch.indices) + first_line
        return (source, lines) if self.shortlist is None else (source, lines, self.shortlist.candidates(source))

    def _batches(self, lengths: dict[int, int], extra_length: int) -> list[DecodingBatch]:
        max_positions = self.config.batch_tokens // self.num_hypotheses
        shortest = SHORTEST if extra_length == self.extra_lengths[0] else SHORTEST_OF_SECOND
        return make_batches(lengths, self.config.max_source_length, extra_length, max_positions, shortest)

    def _search(
        self,
        parameters: tuple[dict, ...],
        source: Int[Array, "B S"],
        lines: Int[Array, "B"],
        candidates: Int[Array, "B C"] | None = None,
        *,
        extra_length: int,
    ) -> tuple[Hypotheses, Bool[Array, "B"]]:
        models = ensemble.build_models(self.graphs, parameters, candidates)
        lengths = (source != PAD).sum(axis=1) - 1
        # A filler row has not even EOS; its negative limit marks it as done.
        limits = jnp.where(lengths < 0, -1, lengths + self.config.max_extra_length)
        max_length = source.shape[1] + extra_length
        return self.strategy.search(models, source, limits, lines, self.config, self.num_found, max_length)

    def _read(
        self, tokens: Int[np.ndarray, "N L"], scores: Float[np.ndarray, "N"], log_p: Float[np.ndarray, "N L"]
    ) -> list[Translation]:
        """Returns the translations of one sentence: at least one, and fewer than `n_best` if no more were found.

        Several token sequences may have the same text: a search returns the best of them.
        """
        found = np.flatnonzero(np.isfinite(scores))
        outputs = [tokens[n, : np.argmax(tokens[n] == EOS) + 1].tolist() for n in found]
        texts = self.tokenizer.target.decode(outputs)
        translations: list[Translation] = []
        for n, output, text in zip(found, outputs, texts, strict=True):
            text = " ".join(text.splitlines())
            if self.strategy.distinct and any(better.text == text for better in translations):
                continue
            each = tuple(log_p[n, : len(output)].tolist())
            pieces = tuple(self.pieces[token] for token in output)
            translations.append(Translation(text, tuple(output), pieces, each, sum(each), float(scores[n])))
        return translations[: self.n_best] or [EMPTY]
