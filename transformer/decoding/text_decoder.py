"""Translation of texts."""

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Array, Int

from transformer.config.types import output_limit
from transformer.decoding.batches import (
    SHORTEST,
    DecodingBatch,
    DeviceModels,
    Replicas,
    make_decoding_batches,
    pad,
)
from transformer.decoding.beam_search import Hypotheses, SourceBatch, output_limits
from transformer.decoding.shortlist import ShortlistModel
from transformer.decoding.strategies import check_n_best, strategy_of
from transformer.decoding.target_forms import TARGET_FORMS, TargetForm
from transformer.decoding.translation import (
    EMPTY,
    Translation,
    Translations,
    encode,
    read_hypotheses,
)
from transformer.support.special_tokens import EOS, UNK
from transformer.support.workers import call_all

# tokens by which an output of the first pass may exceed its batch's source length
FIRST_EXTRA_LENGTH = 8
# the smallest padded length of the second pass, so that its few sentences share a program
SHORTEST_OF_SECOND = 64

Sources = list[list[int]]  # the tokens of each text and EOS; [] for a text without tokens
Report = Callable[[int], None]  # gets the number of texts just finished


@dataclass(eq=False)
class TextDecoder(DeviceModels):
    """Translates texts with one model, or with an ensemble of models that share a tokenizer.

    The cost of a step grows with the longest output allowed, and a batch takes as many steps as its
    slowest sentence. So a search by steps has two passes. The second pass repeats the search for
    the few sentences with much longer outputs than sources. Neither a sentence's pass nor its
    translation depends on its neighbours.

    form: of the target texts.
    """

    form: TargetForm = TARGET_FORMS["text"]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.strategy = strategy_of(self.decoding_config)
        self.compile_seconds = 0.0  # of all calls of `translate`

        # Each validation would repeat the warnings. The cache is bounded, because users of a server
        # cause any number of different ones.
        self._warn_once = functools.lru_cache(128)(lambda warning: logging.warning("%s", warning))

    def translate(
        self,
        parameters: Replicas,
        texts: Sequence[str],
        n_best: int = 1,
        first_line: int = 1,
        report: Report = lambda count: None,
    ) -> Translations:
        """Returns at most `n_best` translations of each text, best first.

        Samples are in the order drawn. A text without tokens has `n_best` empty translations.
        `first_line` is the line number of the first text, for warnings and for the random numbers
        of samples. Raises UserError if `check_n_best` does, or the vocabulary cannot encode a text.
        """
        check_n_best(self.decoding_config, n_best)
        sources = self.source_tokens(texts, first_line)
        return self.search_sources(parameters, sources, n_best, first_line, report)

    def search_sources(
        self,
        parameters: Replicas,
        sources: Sources,
        n_best: int,
        first_line: int,
        report: Report,
        *controls: Any,
    ) -> Translations:
        """Returns the translations of each source, by searches in batches of similar length.

        `controls` are more arguments of `arrays_of`.
        """
        arrays_of = self.arrays_of(sources, first_line, *controls)
        translations = [[EMPTY] * n_best for _ in sources]
        pending = [i for i, source in enumerate(sources) if source]
        report(len(sources) - len(pending))
        for extra_length in self.extra_lengths:
            lengths = {i: len(sources[i]) for i in pending}
            pending = []
            search, batches = self.plan_pass(lengths, n_best, extra_length)

            # All programs of the pass compile in parallel, before its first batch.
            start_time = time.perf_counter()
            replica = parameters[self.devices[0]]
            call_all(self._compile_jobs(search, replica, batches, arrays_of))
            self.compile_seconds += time.perf_counter() - start_time

            # A row that is not done waits for the next pass.
            results = self.run_batches(search, parameters, batches, arrays_of)
            with contextlib.closing(results):
                for batch, (hypotheses, done) in results:
                    for row, index in enumerate(batch.indices):
                        if done[row]:
                            translations[index] = self._read(hypotheses, row)[:n_best]
                        else:
                            pending.append(index)
                    report(int(done[: len(batch.indices)].sum()))
        return translations

    def with_tag(self, tag: str) -> Any:
        """Returns a copy, with the same programs, for sources with this tag.

        Raises UserError as `Tokenizer.with_tag`.
        """
        decoder = copy.copy(self)
        decoder.tokenizer = self.tokenizer.with_tag(tag)
        return decoder

    @functools.cached_property
    def extra_lengths(self) -> tuple[int | None, ...]:
        """Tokens by which an output may exceed its batch's source length, in each pass.

        None: the limit of the output is the only one.
        """
        if not self.strategy.takes_steps:
            return (0,)
        # A pass for short outputs would be in vain if most outputs are long.
        is_never_longer = self.decoding_config.max_length_factor <= 1.0
        is_short = is_never_longer and self.decoding_config.max_extra_length <= FIRST_EXTRA_LENGTH
        if is_short or self.form.is_longer:
            return (None,)
        return (FIRST_EXTRA_LENGTH, None)

    def compilations(
        self,
        parameters: tuple[dict, ...],
        lengths: Iterable[int],
        n_best: int = 1,
        arrays_of: Callable | None = None,
    ) -> list[Callable]:
        """Returns functions that each compile a program of `translate`.

        The parameters may be abstract. `arrays_of` is a result of that method; None: for plain
        sources.
        """
        arrays_of = arrays_of or self.arrays_of([], first_line=0)
        lengths = dict(enumerate(lengths))
        jobs: list[Callable] = []
        for extra_length in self.extra_lengths:
            search, batches = self.plan_pass(lengths, n_best, extra_length)
            jobs += self._compile_jobs(search, parameters, batches, arrays_of)
        return jobs

    def plan_pass(
        self, lengths: dict[int, int], n_best: int, extra_length: int | None
    ) -> tuple[Callable, list[DecodingBatch]]:
        """Returns the search of a pass, and the batches of the sources with these lengths."""
        num_hypotheses = n_best
        if self.strategy.size:
            num_hypotheses = self.decoding_config[self.strategy.size]

        # Several translations have different texts: spare hypotheses replace those of equal text.
        if n_best > 1 or self.strategy.has_utility:
            n_best = num_hypotheses
        search = self.jit(
            self.search, method=self.strategy.search, n_best=n_best, extra_length=extra_length
        )

        # A row needs as many positions as the longer of its source and its output.
        def positions(length):
            return max(length, self.max_length(length, extra_length))

        # Each hypothesis of a sentence counts as a row.
        longest = self.decoding_config.max_source_length
        max_positions = self.decoding_config.batch_tokens // num_hypotheses
        shortest = SHORTEST if extra_length == self.extra_lengths[0] else SHORTEST_OF_SECOND
        return search, make_decoding_batches(lengths, longest, max_positions, shortest, positions)

    def _compile_jobs(
        self,
        search: Callable,
        parameters: tuple[dict, ...],
        batches: Sequence[DecodingBatch],
        arrays_of: Callable,
    ) -> list[Callable]:
        """Returns functions that each compile a program of one pass, the longest sources first."""
        jobs: list[Callable] = []
        for rows, length in dict.fromkeys((batch.rows, batch.length) for batch in batches):
            arrays = arrays_of(DecodingBatch(rows, length, indices=[]))
            compile_search = functools.partial(self.programs.compile, search, parameters, *arrays)
            # Devices without a batch need no program.
            for device in self.devices[: len(batches)]:
                jobs.append(functools.partial(compile_search, device=device))
        return jobs

    def source_tokens(self, texts: Sequence[str], first_line: int = 1) -> Sources:
        """Returns the tokens of each text, cut to `max_source_length`.

        Warns about texts that are cut, begin with a tag, or have unknown words.
        """
        vocabulary, _ = self.tokenizer.encoders
        sources = [
            encode(vocabulary, f"line {line}", text)
            for line, text in enumerate(texts, start=first_line)
        ]
        for warning in self._find_faults(texts, sources, first_line):
            self._warn_once(warning)

        # The cut keeps EOS.
        longest = self.decoding_config.max_source_length
        return [[*tokens[:-1][: longest - 1], EOS] if len(tokens) > 1 else [] for tokens in sources]

    def _find_faults(
        self, texts: Sequence[str], sources: Sources, first_line: int
    ) -> Iterator[str]:
        """Yields the warnings of `source_tokens`."""
        longest = self.decoding_config.max_source_length
        too_long = [i for i, tokens in enumerate(sources) if len(tokens) > longest]
        if too_long:
            first = too_long[0]
            warning = (
                f"Line {first_line + first} has {len(sources[first])} tokens including "
                f"end-of-sentence; only the first {longest - 1} are translated "
                f"(decoding.max_source_length={longest})."
            )
            if len(too_long) > 1:
                warning += f" {len(too_long)} of {len(texts)} lines are cut."
            yield warning

        warning = self.tokenizer.find_typed_tag(texts, first_line)
        if warning:
            yield warning

        # Unknown words are half of the tokens: each follows a token for its space.
        for line, tokens in enumerate(sources, start=first_line):
            if 0 < len(tokens) - 1 <= 2 * tokens.count(UNK):
                yield f"Line {line}: its words are unknown to the vocabulary; check its language."
                break

    def arrays_of(self, sources: Sources, first_line: int) -> Callable[[DecodingBatch], tuple]:
        """Returns the function from a batch to the arrays of `search`."""

        def arrays(batch):
            source = pad([sources[i] for i in batch.indices], batch.rows, batch.length)

            # Filler rows have index -1.
            indices = [*batch.indices, *[-1] * (batch.rows - len(batch.indices))]
            lines = np.array(indices, np.int32) + first_line
            shortlisted = None if self.shortlist is None else self.shortlist.tokens_of(source)
            return source, lines, shortlisted

        return arrays

    def search(
        self,
        models: Sequence[Any],
        source: Int[Array, "B S"],
        lines: Int[Array, " B"],
        shortlisted: Int[Array, "B C"] | None,
        *,
        method: Callable[..., Any],
        n_best: int,
        extra_length: int | None,
    ) -> Any:
        """Returns the result of `method`, which has the arguments of `Strategy.search`."""
        if shortlisted is not None:
            models = [ShortlistModel(model, shortlisted) for model in models]
        limits = output_limits(source, self.decoding_config)
        max_length = self.max_length(source.shape[1], extra_length)
        sentences = SourceBatch(source, limits, max_length, lines)
        return method(models, sentences, self.decoding_config, n_best)

    def max_length(self, length: int, extra_length: int | None) -> int:
        """Returns the length of outputs, EOS included, for sources that are padded to `length`."""
        longest = output_limit(length - 1, self.decoding_config) + 1
        return longest if extra_length is None else min(length + extra_length, longest)

    def _read(self, hypotheses: Hypotheses, row: int) -> list[Translation]:
        sentence = Hypotheses(*(array[row] for array in hypotheses))
        translations = read_hypotheses(sentence, self.tokenizer.target)
        return self.strategy.select(translations, self.decoding_config)
