"""The decoder of a configuration: plain, or for constraints, documents or reranking."""

from collections.abc import Callable, Sequence
from typing import Any

from transformer.config.types import Config
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.documents import DocumentDecoder
from transformer.decoding.mbr import UTILITIES
from transformer.decoding.reranking import CommandScorer, RerankingDecoder, Scorer
from transformer.decoding.scored_mbr import ScoredMbrDecoder
from transformer.decoding.target_forms import TARGET_FORMS
from transformer.decoding.text_decoder import TextDecoder


def make_decoder(
    config: Config,
    *fields: Any,
    scorers: Sequence[Scorer | CommandScorer] = (),
    takes_controls: bool = False,
) -> TextDecoder:
    """Returns the decoder with these `fields` of `DeviceModels` for the models of a configuration.

    takes_controls: whether its method `translate` has the argument `controls`.
    """
    form = TARGET_FORMS[config.data.target_form]
    decoder = _make_decoder(config, fields, scorers, takes_controls, form.output_rule)
    if form.is_longer:
        # A pass for short outputs would be in vain.
        decoder.extra_lengths = decoder.extra_lengths[-1:]
    return decoder


def is_scored_mbr(decoding_config: Config) -> bool:
    """True if the command of `decoding.scorer` is the utility of the search."""
    has_utility = decoding_config.strategy in ("mbr", "mbr_beam")
    return has_utility and UTILITIES[decoding_config.mbr_utility] is None


def _make_decoder(
    config: Config,
    fields: Sequence[Any],
    scorers: Sequence[Scorer | CommandScorer],
    takes_controls: bool,
    output_rule: Callable | None,
) -> TextDecoder:
    if is_scored_mbr(fields[2]):  # validation has another strategy than `config.decoding`
        return ScoredMbrDecoder(*fields, output_rule=output_rule)
    if scorers:
        return RerankingDecoder(*fields, output_rule=output_rule, scorers=scorers)

    # The output of a language model begins with its source, so a language model continues each
    # sentence by itself.
    if config.data.context and config.data.source_language:
        return DocumentDecoder(*fields, context=config.data.context)
    # The keys that constrain outputs.
    constraints = ("min_length", "no_repeat_ngram", "banned", "banned_pieces", "well_formed")
    if takes_controls or any(config.decoding[key] for key in constraints):
        return ControlledDecoder(*fields, output_rule=output_rule)
    return TextDecoder(*fields)
