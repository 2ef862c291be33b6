"""Searches with controls, whose programs are compiled when a request needs them."""

import asyncio
import dataclasses
import functools
import gc
from collections.abc import Callable, Sequence

from scripts.serving.batching import Batcher
from transformer.api import Model
from transformer.decoding.control.control import Control
from transformer.decoding.translation import Translation
from transformer.support.workers import call_all


@dataclasses.dataclass(eq=False)
class ControlledSearches:
    """The searches of a model with controls.

    Attributes:
      explorer: the model with the smallest batches.
      queue: a queue of the kind "explore", for the compiler.
      max_shapes: the number of shapes whose programs are kept.
    """

    explorer: Model
    queue: Batcher
    max_shapes: int

    def __post_init__(self) -> None:
        self._models = {}  # by padded length and shapes of the control, the latest used model last

    async def jobs(
        self, sentences: Sequence[str], controls: Sequence[Control], padded: Sequence[int]
    ) -> list[Callable[[], list[Translation]]]:
        """Returns a search for each sentence, after their programs have been compiled.

        Each sentence is searched separately, because a program's shapes depend on all phrases of a
        batch. `padded` are the numbers of the sentences' padded lengths.
        """
        shapes = await asyncio.to_thread(control_shapes, self.explorer, sentences, controls)
        # Sentences without terms of the glossary have the programs of plain ones.
        models = {(length, ()): self.explorer for length in padded}
        jobs = []
        for length, shape, sentence, control in zip(
            padded, shapes, sentences, controls, strict=True
        ):
            key = (length, shape)
            if key not in models:
                model = self._models.pop(key, None)
                if model is None:
                    # The compiler has its own queue, so that other requests do not wait for it.
                    call = functools.partial(self._compile, key, sentence, control)
                    (model,) = await self.queue.compute("explore", [call])
                models[key] = model
                self._models[key] = model  # now the last one
            jobs.append(functools.partial(_search, models[key], sentence, control))
        return jobs

    def _compile(self, key: tuple, sentence: str, control: Control) -> Model:
        """Returns a model with the programs of a padded length and the shapes of a control.

        The models that were used the longest ago are removed.
        """
        if key not in self._models:
            model = separate(self.explorer)
            compile_search(model, sentence, control)
            self._models[key] = model
            for old_key in list(self._models)[: -self.max_shapes]:
                self._models.pop(old_key, None)
            gc.collect()  # frees the old programs, and much memory of the compiler
        return self._models[key]


def separate(model: Model) -> Model:
    """Returns a model with the same parameters, and its own programs and lock.

    The two models do not wait for each other. The search has one pass, as long as the longest
    output, since a second program for short outputs does not pay for few sentences.
    """
    decoder = dataclasses.replace(model.decoder)
    decoder.extra_lengths = decoder.extra_lengths[-1:]
    return dataclasses.replace(model, decoder=decoder)


def control_shapes(model: Model, texts: Sequence[str], controls: Sequence[Control]) -> list[tuple]:
    """Returns the array shapes of each text's control. A search is compiled for each shape.

    Raises UserError if no translation of a text can obey its control.
    """
    # The shapes depend on the phrases of a control and on the length of the text.
    decoder = model.decoder
    shapes = []
    for i, source in enumerate(decoder.source_tokens(texts)):
        make_arrays = decoder.control.encode([controls[i]], [source], first_line=i + 1)
        arrays = make_arrays([0])
        shapes.append(tuple((name, array.shape) for name, array in arrays.items()))
    return shapes


def compile_search(model: Model, text: str, control: Control) -> None:
    """Compiles the programs of a search for `beam_size` translations of a text."""
    decoder = model.decoder
    parameters = model.parameters[decoder.devices[0]]
    n_best = model.config.decoding.beam_size
    sources = decoder.source_tokens([text])
    # The control of the second search depends on the translation by the first one. Its limit does
    # not change the programs.
    searches = [decoder.control.relax(control)]
    if searches != [control]:
        searches.append(control._replace(limit=1))
    for search in searches:
        arrays_of = decoder.arrays_of(sources, 1, [search])
        call_all(decoder.compilations(parameters, map(len, sources), n_best, arrays_of))


def _search(model: Model, sentence: str, control: Control) -> list[Translation]:
    (translations,) = model.translate(
        [sentence],
        model.config.decoding.beam_size,
        prefixes=[control.prefix],
        required=[control.required],
        banned=[control.banned],
    )
    return translations
