"""Translation of texts whose outputs obey constraints: those of `config.decoding`, and those of each source."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from transformer.config.types import Config
from transformer.decoding.batches import DecodingBatch, Replicas
from transformer.decoding.beam_search import Models, Sentences
from transformer.decoding.control.constraints import constrain
from transformer.decoding.control.control import Control, OutputControl
from transformer.decoding.control.phrase_translation import search_twice
from transformer.decoding.control.required_phrases import with_phrases
from transformer.decoding.strategies import check_n_best
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import Translation


class ControlledDecoder(TextDecoder):
    """A decoder whose searches obey the constraints of `config.decoding` and the controls of a call."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.control = OutputControl(self.config, self.tokenizer.target)

    def translate(
        self,
        parameters: Replicas,
        texts: Sequence[str],
        n_best: int = 1,
        first_line: int = 1,
        report: Callable[[int], None] = lambda count: None,
        controls: Sequence[Control] = (),
    ) -> list[list[Translation]]:
        """Returns the translations of each text, as `TextDecoder.translate` does.

        `controls` are empty or have one for each text. Raises UserError also if `OutputControl.encode` does.
        """
        if not any(map(any, controls)):
            return super().translate(parameters, texts, n_best, first_line, report)
        check_n_best(self.config, n_best)
        sources = self.source_tokens(texts, first_line)

        def search(
            sources: list[list[int]], controls: Sequence[Control], report: Callable[[int], None]
        ) -> list[list[Translation]]:
            arrays_of = self.arrays_of(sources, first_line, controls)
            return self.search_sources(parameters, sources, n_best, arrays_of, report)

        if all(len(self.control.searches(control)) == 1 for control in controls):
            return search(sources, controls, report)
        self.control.encode(controls, sources, first_line)  # refuses what no output can have
        return search_twice(search, self.control, sources, controls, report)

    def arrays_of(
        self, sources: list[list[int]], first_line: int, controls: Sequence[Control] = ()
    ) -> Callable[[DecodingBatch], tuple]:
        """Returns the function from a batch to the arrays of `search`. Raises UserError as `OutputControl.encode`."""
        plain = super().arrays_of(sources, first_line)
        constraints = self.control.encode(controls, sources, first_line)
        return lambda batch: (*plain(batch), constraints(batch.padded_indices))

    def search(
        self,
        models: Sequence[nnx.Module],
        source: Int[Array, "B S"],
        lines: Int[Array, "B"],
        candidates: Int[Array, "B C"] | None,
        constraints: Mapping[str, Array],
        *,
        method: Callable[..., Any],
        **options: Any,
    ) -> Any:
        """Returns the result of `method` for sentences whose outputs obey the constraints."""
        method = functools.partial(self.search_constrained, method, constraints)
        return super().search(models, source, lines, candidates, method=method, **options)

    def search_constrained(
        self,
        method: Callable[..., Any],
        constraints: Mapping[str, Array],
        models: Models,
        sentences: Sentences,
        config: Config,
        n_best: int,
    ) -> Any:
        limits = sentences.limits
        if "limit" in constraints:
            shorter = constraints["limit"][:, 0]
            limits = jnp.where(shorter > 0, jnp.minimum(limits, shorter), limits)
        values = self.control.values_with(constraints)
        if "required" in values:
            method = with_phrases(method, values["required"], values["edges"])
        sentences = sentences._replace(limits=limits, adjust=functools.partial(constrain, values, limits))
        return method(models, sentences, config, n_best)
