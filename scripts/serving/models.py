"""The models of a server, one for each pair of languages, each with its queue."""

import asyncio
import bisect
import collections
import contextlib
import functools
import html
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from absl import logging

import transformer
from scripts.serving import kept, texts
from scripts.serving.batching import Batcher, Work
from scripts.serving.controlled import ControlledSearches, separate
from scripts.serving.insertion import Escape, insert
from scripts.serving.middleware import Metrics
from scripts.serving.requests import split_control
from transformer.api import Model
from transformer.checkpoints.loaded_models import check_translates_sentences
from transformer.decoding.batches import SHORTEST, padded_lengths
from transformer.decoding.confidence import Confidence
from transformer.decoding.control.control import Control
from transformer.decoding.control.glossary import Glossary
from transformer.decoding.forced_decoding import longest_text
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.text_decoder import FIRST_EXTRA_LENGTH
from transformer.decoding.translation import Translation, Translations
from transformer.model.matmul import FLOAT32, matmul_dtype
from transformer.support.errors import UserError
from transformer.workdir import split_names

# Rows of the smaller batches. For few sentences, the filler rows of a full batch cost too much.
ROWS = (1, 8)
_CALLS = Work(lambda calls: [call() for call in calls], 1)  # functions without arguments


class Answer(NamedTuple):
    """The translations of a text, best first, and the confidence in each sentence of the best."""

    translations: list[str]
    confidences: list[Confidence]


class ServedModel:
    """A model for one pair of languages, with its queues.

    Batches have one of a few numbers of rows. If matmuls are in float32, the translations do not
    depend on the number of rows. Otherwise all batches are full, so that an answer does not depend
    on the number of requests either.

    Attributes:
      source, target: codes of the languages.
      max_n_best: the largest number of translations of a sentence.
      model: the model as loaded, with full batches.
      explorer: the same model with the smallest batches.
      queue: the work of both, of the kinds "translate", "alternatives" (`beam_size` translations of
        a sentence), and "explore" (functions without arguments).
      compiling_explorer, compiling_queue: another model with the same parameters, and a queue for
        work that may wait for the compiler, which does not delay `queue`. It is of kind "explore".
      controlled: the searches with controls.
      is_calibrated: True if the workdir has a calibration for this search.
    """

    def __init__(
        self,
        model: Model,
        wait_seconds: float,
        max_jobs: int,
        metrics: Metrics,
        max_shapes: int,
        keep: bool = False,
    ) -> None:
        config = model.config
        decoding = config.decoding
        self.model = model
        self.source = config.data.source_language
        self.target = config.data.target_language
        self._gap = texts.gap(self.source, self.target)
        self.max_n_best = decoding.beam_size

        # A request asks for the length of a sentence more than once.
        self._num_tokens = functools.lru_cache(max_jobs)(model.num_tokens)
        # Texts that lose a span under the first limits are translated under the next ones.
        plain = [texts.Model(self._fits, model.knows)]
        self._limits = kept.limits(self._fits, model.knows) if keep else plain

        # The tokens that a row of the shortest padded length takes of `batch_tokens`.
        row_tokens = self.max_n_best * (SHORTEST + FIRST_EXTRA_LENGTH)
        capacity = max(decoding.batch_tokens // row_tokens, 1)
        self._models = {}  # by the number of rows

        # In other types, rounding may differ between numbers of rows.
        if matmul_dtype(config.model.dtype) == FLOAT32 and decoding.dtype == "auto":
            for rows in ROWS:
                if rows * row_tokens < decoding.batch_tokens:
                    self._models[rows] = model.with_decoding(batch_tokens=rows * row_tokens)
        self._models[capacity] = model
        self.explorer = self._models[min(self._models)]

        kinds = {
            "translate": Work(self._translate, capacity),
            "alternatives": Work(self._alternatives, capacity),
            "explore": _CALLS,
        }

        # The measurements of the queue have the pair as their label.
        pair = f"{self.source}-{self.target}"
        self.queue = Batcher(kinds, wait_seconds, max_jobs, functools.partial(metrics.report, pair))
        self.compiling_explorer = separate(self.explorer)
        self.compiling_queue = Batcher({"explore": _CALLS}, 0.0, max_jobs)
        self.controlled = ControlledSearches(self.explorer, self.compiling_queue, max_shapes)
        self.is_calibrated = True
        try:
            self.explorer.confidence([], [])
        except UserError as error:
            self.is_calibrated = False
            logging.info("Serves no confidence: %s", error)
        metrics.queue.labels(pair).set_function(lambda: len(self.queue))
        self._tokens = metrics.tokens.labels(pair)

    def compile(self) -> None:
        """Compiles the programs of translations without controls, and of their explanations."""
        for model in self._models.values():
            model.compile()
        self.explorer.compile(self.max_n_best)

        # Scores, attention and beam trees have a program for each padded length.
        decoding = self.model.config.decoding
        one, two = map(self.explorer.num_tokens, ("1", "1 1"))

        def text_of(num_tokens: int) -> str:
            return " ".join(["1"] * (1 + (num_tokens - one) // max(two - one, 1)))

        for padded in padded_lengths(longest_text(decoding)):
            known_text = text_of(padded)
            source = text_of(min(padded, decoding.max_source_length))
            calls = (
                ("score", [(known_text, "")]),
                ("attention", known_text, ""),
                ("beam_tree", source),
            )
            for method, *arguments in calls:
                with contextlib.suppress(UserError):  # the model has no such method
                    getattr(self.explorer, method)(*arguments)
            # A calibration may need passes with dropout, or of the models of an ensemble.
            if self.is_calibrated:
                self.explorer.confidence(["1"], [self.explorer.score([("1", known_text)])])

    async def translate(
        self,
        sources: Sequence[str],
        text_format: str,
        n_best: int,
        controls: Sequence[Control],
        glossary: Glossary,
        with_confidence: bool = False,
    ) -> list[Answer]:
        """Returns at most `n_best` translations of each text, the best one first.

        Translation N of a text consists of the N-th best translation of each sentence, or of its
        last one if it has fewer.

        Args:
          text_format: "text" or "html".
          controls: one for each text. Its prefix is for the first sentence of the text.
          with_confidence: answers have confidences. It needs `is_calibrated`.

        Raises:
          UserError: no output can obey a control.
        """
        first_limits, *other_limits = self._limits
        answers = await self._translate_texts(
            first_limits, sources, text_format, n_best, controls, glossary, with_confidence
        )
        shown = html.unescape if text_format == "html" else str
        for limits in other_limits:
            translations = [list(map(shown, answer.translations)) for answer in answers]
            lost = kept.find_lost(list(map(shown, sources)), translations)
            if not lost:
                break
            again = await self._translate_texts(
                limits,
                [sources[i] for i in lost],
                text_format,
                n_best,
                [controls[i] for i in lost],
                glossary,
                with_confidence,
            )
            for i, answer in zip(lost, again, strict=True):
                answers[i] = answer
        return answers

    async def _translate_texts(
        self,
        limits: texts.Model,
        sources: Sequence[str],
        text_format: str,
        n_best: int,
        controls: Sequence[Control],
        glossary: Glossary,
        with_confidence: bool,
    ) -> list[Answer]:
        # In a thread, so that no request waits while a long text is split.
        split = await asyncio.to_thread(
            texts.split_texts, sources, text_format, self.source, limits
        )
        sentences = [[piece.text for piece in pieces if piece.is_sentence] for pieces in split]
        jobs = list(itertools.chain(*sentences))  # of all texts together
        kind = "translate" if n_best == 1 else "alternatives"

        # With controls, the job of a sentence is a function that searches only for it.
        if glossary.terms or any(map(any, controls)):
            sentence_controls = []
            for text_sentences, control in zip(sentences, controls, strict=True):
                sentence_controls += split_control(control, text_sentences, glossary)
            lengths = self._padded(map(self._num_tokens, jobs))
            jobs = await self.controlled.jobs(jobs, sentence_controls, lengths)
            kind = "explore"

        # `hypotheses` has a list for each sentence, with the best translation first.
        hypotheses = await self.queue.compute(kind, jobs)
        self._tokens.inc(sum(len(best.tokens) for best, *_ in hypotheses))
        confidences = iter([])
        if with_confidence:
            best_of_each = zip(itertools.chain(*sentences), hypotheses, strict=True)
            calls = [functools.partial(self._confidence, *pair) for pair in best_of_each]
            confidences = iter(await self.queue.compute("explore", calls))

        insert_marks = functools.partial(self._insert_marks, n_best, texts.ESCAPES[text_format])
        pieces = [piece for piece in itertools.chain(*split) if piece.is_sentence]
        calls = [
            functools.partial(insert_marks, *pair) for pair in zip(pieces, hypotheses, strict=True)
        ]
        if any(piece.marks for piece in pieces):  # these need the model
            marked = iter(await self.queue.compute("explore", calls))
        else:
            marked = (call() for call in calls)

        # The sentences of each text are joined, with the white space and the markup between them.
        answers = []
        for pieces, text_sentences in zip(split, sentences, strict=True):
            n_best_of = list(itertools.islice(marked, len(text_sentences)))
            answer = []
            for n in range(max(map(len, n_best_of), default=1)):
                nth = (translations[min(n, len(translations) - 1)] for translations in n_best_of)
                answer.append(texts.join(pieces, nth, self._gap))
            confidences_of = list(itertools.islice(confidences, len(text_sentences)))
            answers.append(Answer(list(dict.fromkeys(answer)), confidences_of))
        return answers

    def _confidence(self, sentence: str, hypotheses: Sequence[Translation]) -> Confidence:
        """Returns the confidence in the best translation of a sentence."""
        ((confidence,),) = self.explorer.confidence([sentence], [list(hypotheses[:1])])
        return confidence

    def _insert_marks(
        self, n_best: int, escape: Escape, piece: texts.Piece, translations: Sequence[Translation]
    ) -> list[str]:
        """Returns the best translations of a sentence, escaped, with its inline tags and emoji."""
        return [
            insert(self.explorer, piece.text, piece.marks, translation.text, escape)
            for translation in translations[:n_best]
        ]

    def _translate(self, sentences: list[str]) -> Translations:
        # Each number of rows has its own programs, so its sentences are translated together.
        rows = self._choose_rows(map(self._num_tokens, sentences))
        translations = {}
        for count in set(rows):
            numbers = [i for i, other in enumerate(rows) if other == count]
            results = self._models[count].translate([sentences[i] for i in numbers])
            translations |= zip(numbers, results, strict=True)
        return [translations[i] for i in range(len(sentences))]

    def _alternatives(self, sentences: list[str]) -> Translations:
        return self.explorer.translate(sentences, self.max_n_best)

    def _padded(self, lengths: Iterable[int]) -> list[int]:
        """Returns the number of each length's padded length."""
        shapes = padded_lengths(self.model.config.decoding.max_source_length)
        return [bisect.bisect_left(shapes, length) for length in lengths]

    def _choose_rows(self, lengths: Iterable[int]) -> list[int]:
        """Returns the number of rows of each sentence's batch.

        It is the largest number that the sentences of the same padded length fill at least half.
        """
        padded = self._padded(lengths)
        rows = {}
        for shape, count in collections.Counter(padded).items():
            half_filled = [number for number in self._models if number <= 2 * count]
            rows[shape] = max(half_filled, default=min(self._models))
        return [rows[shape] for shape in padded]

    def _fits(self, sentence: str) -> bool:
        return self._num_tokens(sentence) <= self.model.config.decoding.max_source_length


def load_models(
    workdirs: Sequence[str],
    checkpoint: str,
    average: int,
    decoding: dict[str, str],
    *options: Any,
    pairs: Sequence[tuple[str, str]] = (),
) -> list[ServedModel]:
    """Loads the model of each workdir and compiles its programs.

    Args:
      options: the arguments of `ServedModel` after the model.
      pairs: the pairs of languages that the only model translates; () for the pair of each model.

    Raises:
      UserError: a model cannot be loaded, does not translate or does not know a language, or two
        models translate the same pair.
    """
    models = {}
    for workdir in workdirs:
        model = transformer.load(split_names(workdir), checkpoint, average, **decoding)
        check_translates_sentences(model.config, workdir)
        strategy = model.config.decoding.strategy
        if STRATEGIES[strategy].samples:
            raise UserError(
                f"--workdir={workdir}: decoding.strategy={strategy} is not served; choose a search"
            )
        source = model.config.data.source_language
        target = model.config.data.target_language
        if (source, target) in models:
            raise UserError(
                f"--workdir={workdir}: translates {source} to {target}, as an earlier one does; "
                "leave one out"
            )
        models[source, target] = model
    if pairs:
        (model,) = models.values()
        models = {pair: model.with_languages(*pair) for pair in pairs}
    served = [ServedModel(model, *options) for model in models.values()]
    for model in served:
        model.compile()
        logging.info("Serves %s to %s.", model.source, model.target)
    return served
