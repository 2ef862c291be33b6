"""Translation of texts under constraints: of `config.decoding`, and of each source."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from transformer.decoding.batches import DecodingBatch, Replicas
from transformer.decoding.beam_search import Models
from transformer.decoding.control.constraints import constrain
from transformer.decoding.control.control import Control, OutputControl
from transformer.decoding.control.required_phrases import search_with_phrases
from transformer.decoding.strategies import check_n_best
from transformer.decoding.text_decoder import Report, Sources, TextDecoder
from transformer.decoding.translation import EMPTY, Translation, Translations, different_texts


@dataclasses.dataclass(eq=False)
class ControlledDecoder(TextDecoder):
    """A decoder that obeys the constraints of `config.decoding` and the controls of a call.

    A beam search with required phrases has two parts. The second part searches with the phrases,
    but only for sources with an output of the first part that lacks one. So an output that has the
    phrases without being forced to is never lost.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.control = OutputControl(self.decoding_config, self.tokenizer.target)
        if self.decoding_config.well_formed:
            self.rule_of = self.form.output_rule(self.tokenizer)

    def translate(
        self,
        parameters: Replicas,
        texts: Sequence[str],
        n_best: int = 1,
        first_line: int = 1,
        report: Report = lambda count: None,
        controls: Sequence[Control] = (),
    ) -> Translations:
        """Returns the translations of each text, as `TextDecoder.translate` does.

        `controls` are empty or have one for each text. Raises UserError also if
        `OutputControl.encode` does.
        """
        check_n_best(self.decoding_config, n_best)
        sources = self.source_tokens(texts, first_line)

        def search(sources, controls, report=lambda count: None):
            return self.search_sources(parameters, sources, n_best, first_line, report, controls)

        # The first part: all sources, without required phrases. It may be all that is needed.
        relaxed = list(map(self.control.relax, controls))
        if relaxed == list(controls):
            return search(sources, controls, report)
        self.control.encode(controls, sources, first_line)  # refuses what no output can have
        translations = search(sources, relaxed)

        # The second part: only sources with an output that lacks a phrase.
        pending = {}
        for i, (control, outputs) in enumerate(zip(controls, translations, strict=True)):
            if sources[i] and len(self._obeying(control, outputs)) < len(outputs):
                pending[i] = self.control.with_limit(control, outputs[0])
        report(len(sources) - len(pending))
        forced = search([sources[i] for i in pending], [*pending.values()], report)
        for i, outputs in zip(pending, forced, strict=True):
            translations[i] = self._best_of_parts(controls[i], translations[i], outputs)
        return translations

    def _obeying(self, control: Control, outputs: list[Translation]) -> list[Translation]:
        """Returns the outputs that have the required phrases."""
        return [output for output in outputs if not self.control.lacks(output, control.required)]

    def _best_of_parts(
        self, control: Control, relaxed: list[Translation], forced: list[Translation]
    ) -> list[Translation]:
        """Returns the best outputs with the required phrases, of both parts of a search."""
        outputs = [output for output in self._obeying(control, relaxed) + forced if output.tokens]
        outputs.sort(key=lambda output: -output.score)
        count = max(len(relaxed), len(forced))
        return different_texts(outputs)[:count] or [EMPTY]

    def arrays_of(
        self, sources: Sources, first_line: int, controls: Sequence[Control] = ()
    ) -> Callable[[DecodingBatch], tuple]:
        """Returns the function from a batch to the arrays of `search`.

        Raises UserError as `OutputControl.encode`.
        """
        plain = super().arrays_of(sources, first_line)
        constraints = self.control.encode(controls, sources, first_line)

        def arrays(batch):
            source, lines, shortlisted = plain(batch)
            indices = lines - first_line  # -1 for filler rows
            return source, lines, shortlisted, constraints(indices)

        return arrays

    def search(
        self, models: Models, *arrays: Any, method: Callable[..., Any], **options: Any
    ) -> Any:
        """Returns the result of `method` under the constraints, the last of the arrays."""
        *plain_arrays, constraints = arrays

        def search(models, sentences, *arguments):
            # A control may lower the limit of its row; 0 leaves it.
            limits = sentences.limits
            if "limit" in constraints:
                shorter = constraints["limit"][:, 0]
                limits = jnp.where(shorter > 0, jnp.minimum(limits, shorter), limits)
            values = self.control.values_with(constraints)
            if self.decoding_config.well_formed:
                values["well_formed"] = self.rule_of(sentences.source)
            adjust = functools.partial(constrain, values, limits)
            sentences = sentences._replace(limits=limits, adjust=adjust)

            # A beam search with required phrases has its own algorithm. Other searches only obey
            # the constraint.
            if "required" in values:
                edges = values["spelling"]["edges"]
                phrase_search = functools.partial(search_with_phrases, values["required"], edges)
                sentences = sentences._replace(search=phrase_search)
            return method(models, sentences, *arguments)

        return super().search(models, *plain_arrays, method=search, **options)
