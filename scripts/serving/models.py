"""The models of a server, one for each pair of languages, each with its queue."""

import asyncio
import bisect
import collections
import contextlib
import functools
import gc
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import logging

import transformer
from scripts.serving import texts
from scripts.serving.batching import Batcher, Work
from scripts.serving.inline_tags import insert
from scripts.serving.middleware import Metrics
from transformer.api import Model
from transformer.checkpoints.trained import check_translates_sentences
from transformer.decoding.batches import SHORTEST, padded_lengths
from transformer.decoding.control.control import Control
from transformer.decoding.control.glossary import Glossary
from transformer.decoding.forced_decoding import longest_text
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.text_decoder import FIRST_EXTRA_LENGTH
from transformer.decoding.translation import Translation
from transformer.model.kernels import FLOAT32, product_dtype
from transformer.support.errors import UserError
from transformer.workdir import split_names

# of the shortest batches: few sentences do not pay for the filler rows of a full batch
ROWS = (1, 8)
_CALLS = Work(lambda calls: [call() for call in calls], 1)  # functions without arguments


class ServedModel:
    """A model for one pair of languages.

    Batches have one of a few numbers of rows. With products in float32 they all find the same
    translations; with others all batches are full, so that answers cannot depend on the number of
    requests either.

    Attributes:
      source, target: the codes of the languages. max_n_best: the most translations of a sentence.
      model: the model as loaded, with full batches. explorer: the same with the smallest batches.
      queue: the queue of its work: the kinds "translate" and "alternatives", which finds
        `beam_size` translations of a sentence, and "explore", functions without arguments.
      aside, beside: another model with the same parameters, and a queue for what may wait for the
        compiler, which therefore does not delay `queue`. It has only the kind "explore".
    """

    def __init__(
        self,
        model: Model,
        wait_seconds: float,
        max_jobs: int,
        metrics: Metrics,
        max_shapes: int,
    ) -> None:
        config = model.config
        self.model = model
        self.source = config.data.source_language
        self.target = config.data.target_language
        self._gap = texts.gap(self.source, self.target)
        self.max_n_best = config.decoding.beam_size
        row = self.max_n_best * (SHORTEST + FIRST_EXTRA_LENGTH)
        capacity = max(config.decoding.batch_tokens // row, 1)
        is_exact = product_dtype(config.model.dtype) == FLOAT32 and config.decoding.dtype == "auto"
        # else rounding may differ
        rows = [n for n in ROWS if is_exact and n * row < config.decoding.batch_tokens]
        # asked twice of a sentence
        self._num_tokens = functools.lru_cache(max_jobs)(model.num_tokens)
        self._models = {n: model.with_decoding(batch_tokens=n * row) for n in rows} | {
            capacity: model
        }
        self.explorer = next(iter(self._models.values()))
        kinds = {
            "translate": Work(self._translate, capacity),
            "alternatives": Work(
                lambda sentences: self.explorer.translate(sentences, self.max_n_best), capacity
            ),
            "explore": _CALLS,
        }
        pair = f"{self.source}-{self.target}"
        self.queue = Batcher(kinds, wait_seconds, max_jobs, functools.partial(metrics.report, pair))
        self.aside = self.explorer.separate()
        self.beside = Batcher({"explore": _CALLS}, 0.0, max_jobs)
        self._controlled = {}  # by shapes, the latest used one last
        self._max_shapes = max_shapes
        metrics.queue.labels(pair).set_function(lambda: len(self.queue))
        self._tokens = metrics.tokens.labels(pair)

    def compile(self) -> None:
        """Compiles the programs of translations, and those that explain them, except with controls."""
        for model in self._models.values():
            model.compile()
        self.explorer.compile(self.max_n_best)
        (one, two), decoding = (
            map(self.explorer.num_tokens, ("1", "1 1")),
            self.model.config.decoding,
        )
        for padded in padded_lengths(longest_text(decoding)):
            # of known texts and of texts to translate
            lengths = padded, min(padded, decoding.max_source_length)
            text, source = (
                " ".join(["1"] * (1 + (length - one) // max(two - one, 1))) for length in lengths
            )
            for method, arguments in (
                ("score", [[(text, "")]]),
                ("attention", (text, "")),
                ("beam_tree", [source]),
            ):
                with contextlib.suppress(UserError):  # the model has no such method
                    getattr(self.explorer, method)(*arguments)

    async def translate(
        self,
        sources: Sequence[str],
        form: str,
        n_best: int,
        controls: Sequence[Control],
        glossary: Glossary,
    ) -> list[list[str]]:
        """Returns the `n_best` translations of each text, best first; fewer if its searches do not
        find so many.

        `form`: "text" or "html". Number N joins the N-th best translation of each sentence, or its
        last one. `controls` has one for each text, whose first sentence has its prefix. Raises
        UserError if no output can obey one.
        """
        # so that no request waits for a long one
        split = await asyncio.to_thread(self._split, sources, form)
        sentences = [[piece.text for piece in pieces if piece.is_sentence] for pieces in split]
        jobs = list(itertools.chain(*sentences))
        kind = "translate" if n_best == 1 else "alternatives"
        if glossary.terms or any(map(any, controls)):
            controls = list(
                itertools.chain(*map(_controls, sentences, controls, itertools.repeat(glossary)))
            )
            jobs = await self._controlled_jobs(jobs, controls)
            kind = "explore"
        found = await self.queue.compute(kind, jobs)
        self._tokens.inc(sum(len(best[0].tokens) for best in found))
        translated = [piece for piece in itertools.chain(*split) if piece.is_sentence]
        escape = texts.ESCAPES[form]

        def insert_marks(piece: texts.Piece, best: Sequence[Translation]) -> list[str]:
            return [
                insert(self.explorer, piece.text, piece.marks, one.text, escape)
                for one in best[:n_best]
            ]

        calls = list(map(functools.partial, itertools.repeat(insert_marks), translated, found))
        if any(piece.marks for piece in translated):  # these need the model
            marked = await self.queue.compute("explore", calls)
        else:
            marked = [call() for call in calls]
        remaining = iter(marked)
        translations = []
        for pieces, own in zip(split, sentences, strict=True):
            hypotheses = list(itertools.islice(remaining, len(own)))
            count = max(map(len, hypotheses), default=1)
            chosen = [[best[min(n, len(best) - 1)] for best in hypotheses] for n in range(count)]
            joined = [texts.join(pieces, iter(nth), self._gap) for nth in chosen]
            translations.append(list(dict.fromkeys(joined)))
        return translations

    def _split(self, sources: Sequence[str], form: str) -> list[list[texts.Piece]]:
        can = texts.Model(self._fits, self.model.knows)
        return [texts.SPLITTERS[form](text, self.source, can) for text in sources]

    def _translate(self, sentences: list[str]) -> list[list[Translation]]:
        rows = self._choose_rows([self._num_tokens(sentence) for sentence in sentences])
        found = {}
        for count in set(rows):
            chosen = [i for i in range(len(sentences)) if rows[i] == count]
            found |= zip(
                chosen, self._models[count].translate([sentences[i] for i in chosen]), strict=True
            )
        return [found[i] for i in range(len(sentences))]

    async def _controlled_jobs(
        self, sentences: Sequence[str], controls: Sequence[Control]
    ) -> list[Callable[[], list[Translation]]]:
        """Returns the searches with controls, when their programs are compiled.

        Each sentence is searched by itself: a program's shapes depend on all phrases of a batch.
        """
        shapes = await asyncio.to_thread(self.model.control_shapes, sentences, controls)
        shapes = list(zip(self._padded(map(self._num_tokens, sentences)), shapes, strict=True))
        # Sentences without terms of the glossary have the programs of plain ones.
        models = {(length, ()): self.explorer for length, _ in shapes}
        jobs = []
        for shape, *pair in zip(shapes, sentences, controls, strict=True):
            if shape not in models:
                model = self._controlled.pop(shape, None)
                if model is None:
                    call = functools.partial(self._compile_controlled, shape, *pair)
                    (model,) = await self.beside.compute("explore", [call])
                models[shape] = model
                self._controlled[shape] = model  # the latest used one is the last
            jobs.append(functools.partial(_search, models[shape], self.max_n_best, *pair))
        return jobs

    def _compile_controlled(self, shape: tuple, sentence: str, control: Control) -> Model:
        """Returns a model with the programs of a shape. Forgets those used the longest ago."""
        if shape not in self._controlled:
            model = self.explorer.separate()
            model.compile(self.max_n_best, sentence, control)
            self._controlled[shape] = model
            for old in list(self._controlled)[: -self._max_shapes]:
                self._controlled.pop(old, None)
            gc.collect()  # frees the old programs, and much that the compilation leaves
        return self._controlled[shape]

    def _padded(self, lengths: Iterable[int]) -> list[int]:
        """Returns the number of the padded length of each length."""
        shapes = padded_lengths(self.model.config.decoding.max_source_length)
        return [bisect.bisect_left(shapes, length) for length in lengths]

    def _choose_rows(self, lengths: Sequence[int]) -> list[int]:
        """Returns each sentence's number of rows: the most that the sentences of its padded length
        fill by half.
        """
        padded = self._padded(lengths)
        counts = collections.Counter(padded)
        return [
            max((n for n in self._models if n <= 2 * counts[i]), default=min(self._models))
            for i in padded
        ]

    def _fits(self, sentence: str) -> bool:
        return self._num_tokens(sentence) <= self.model.config.decoding.max_source_length


def _search(model: Model, n_best: int, sentence: str, control: Control) -> list[Translation]:
    (found,) = model.translate(
        [sentence],
        n_best,
        prefixes=[control.prefix],
        required=[control.required],
        banned=[control.banned],
    )
    return found


def _controls(sentences: Sequence[str], control: Control, glossary: Glossary) -> list[Control]:
    """Returns the controls of a text's sentences, of which the first has its prefix."""
    if control.required and len(sentences) != 1:
        raise UserError(
            "required: the text must be one sentence; send each sentence as a text, or a glossary"
        )
    prefixes = itertools.chain([control.prefix], itertools.repeat(""))
    required = [glossary.required(sentence, control.required) for sentence in sentences]
    return [Control(*known, control.banned) for known in zip(prefixes, required, strict=False)]


def load_models(
    workdirs: Sequence[str],
    checkpoint: str,
    average: int,
    decoding: dict[str, str],
    *queue: Any,
    pairs: Sequence[tuple[str, str]] = (),
) -> list[ServedModel]:
    """Loads the model of each workdir and compiles its programs; `queue`: the other arguments of
    `ServedModel`.

    `pairs`, if there are any, are those of languages that the only model translates. Raises
    UserError if a model cannot be loaded, does not translate or does not know a language, or if two
    translate the same pair.
    """
    models = {}
    for workdir in workdirs:
        model = transformer.load(split_names(workdir), checkpoint, average, **decoding)
        check_translates_sentences(model.config, workdir)
        if STRATEGIES[strategy := model.config.decoding.strategy].samples:
            raise UserError(
                f"--workdir={workdir}: decoding.strategy={strategy} is not served; choose a search"
            )
        pair = source, target = model.config.data.source_language, model.config.data.target_language
        if pair in models:
            raise UserError(
                f"--workdir={workdir}: translates {source} to {target}, as an earlier one does; leave one out"
            )
        models |= {pair: model.with_languages(*pair) for pair in pairs} if pairs else {pair: model}
    served = [ServedModel(model, *queue) for model in models.values()]
    for model in served:
        model.compile()
        logging.info("Serves %s to %s.", model.source, model.target)
    return served
