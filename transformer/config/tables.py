"""Tables of implementations, by the configuration keys that name an entry.

A table stands next to its implementations, in a part of the package that imports
transformer/config. Only this module imports such parts. It does so inside functions, so that
commands parse their flags without JAX.
"""

import functools
import pkgutil
from collections.abc import Mapping
from typing import Any

# MODULE:TABLE of each key that `configs/base.py` declares with the rule `LISTED`.
NAMES = {
    "model.activation": "transformer.model.layers:ACTIVATIONS",
    "model.norm_position": "transformer.model.layers:NORM_POSITIONS",
    "model.norm": "transformer.model.norms:NORMS",
    "model.attention": "transformer.model.attention:ATTENTION_SCORES",
    "model.attention_implementation": (
        "transformer.model.fused_attention:ATTENTION_IMPLEMENTATIONS"
    ),
    "model.decoder_self_attention": "transformer.model.cache:DECODER_SELF_ATTENTIONS",
    "model.decoder_start": "transformer.model.stacks:DECODER_STARTS",
    "model.positions": "transformer.model.positions:POSITIONS",
    "model.share_embeddings": "transformer.model.transformer:SHARE_EMBEDDINGS",
    "model.remat": "transformer.model.stacks:REMATS",
    "model.parameterization": "transformer.training.parameterization:PARAMETERIZATIONS",
    "data.source": "transformer.data.sources.source:SOURCES",
    "data.target_form": "transformer.decoding.target_forms:TARGET_FORMS",
    "tokenizer.kind": "transformer.data.tokenizers.vocabulary_training:TOKENIZERS",
    "batch.plan": "transformer.data.batches.loader:PLANS",
    "optimizer.name": "transformer.training.optimizer:OPTIMIZERS",
    "optimizer.schedule": "transformer.training.optimizer:SCHEDULES",
    "training.objective": "transformer.training.objectives:OBJECTIVES",
    "training.loss": "transformer.training.loss:TOKEN_LOSSES",
    "training.candidate_loss": "transformer.training.candidate_loss:CANDIDATE_LOSSES",
    "training.label_smoothing_support": "transformer.training.loss:LABEL_SMOOTHING_SUPPORTS",
    "decoding.strategy": "transformer.decoding.strategies:STRATEGIES",
    "decoding.length_penalty_form": "transformer.decoding.beam_search:LENGTH_PENALTIES",
    "decoding.stopping": "transformer.decoding.beam_search:STOPPING_RULES",
    "decoding.mbr_utility": "transformer.decoding.mbr:UTILITIES",
}


@functools.cache
def tables() -> dict[str, Mapping[str, Any]]:
    """Returns the table of each key of `NAMES`.

    The imports take seconds, because many of the modules import JAX.
    """
    return {key: pkgutil.resolve_name(name) for key, name in NAMES.items()}


def language_tokenizer(code: str) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language."""
    from transformer.decoding import bleu

    return bleu.language_tokenizer(code)
