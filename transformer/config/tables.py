"""Tables of implementations, by the configuration keys that name an entry.

A table stands next to its implementations, in a part of the package that imports
transformer/config. Only this module imports such parts. It does so inside functions, so that
commands parse their flags without JAX.
"""

from collections.abc import Mapping
from typing import Any


def tables() -> dict[str, Mapping[str, Any]]:
    """Returns the table of each key that `configs/base.py` declares with the rule `LISTED`."""
    # These imports take seconds, because many of the modules import JAX.
    from transformer.data.batches.loader import PLANS
    from transformer.data.sources.source import SOURCES
    from transformer.data.tokenizers.vocabulary_training import TOKENIZERS
    from transformer.decoding.beam_search import LENGTH_PENALTIES, STOPPING_RULES
    from transformer.decoding.mbr import UTILITIES
    from transformer.decoding.strategies import STRATEGIES
    from transformer.decoding.target_forms import TARGET_FORMS
    from transformer.model.attention import ATTENTION_SCORES
    from transformer.model.cache import DECODER_SELF_ATTENTIONS
    from transformer.model.fused_attention import ATTENTION_IMPLEMENTATIONS
    from transformer.model.layers import ACTIVATIONS, NORM_POSITIONS
    from transformer.model.norms import NORMS
    from transformer.model.positions import POSITIONS
    from transformer.model.stacks import DECODER_STARTS, REMATS
    from transformer.model.transformer import SHARE_EMBEDDINGS
    from transformer.training.candidate_loss import CANDIDATE_LOSSES
    from transformer.training.loss import LABEL_SMOOTHING_SUPPORTS, TOKEN_LOSSES
    from transformer.training.objectives import OBJECTIVES
    from transformer.training.optimizer import OPTIMIZERS, SCHEDULES
    from transformer.training.parameterization import PARAMETERIZATIONS

    return {
        "model.activation": ACTIVATIONS,
        "model.norm_position": NORM_POSITIONS,
        "model.norm": NORMS,
        "model.attention": ATTENTION_SCORES,
        "model.attention_implementation": ATTENTION_IMPLEMENTATIONS,
        "model.decoder_self_attention": DECODER_SELF_ATTENTIONS,
        "model.decoder_start": DECODER_STARTS,
        "model.positions": POSITIONS,
        "model.share_embeddings": SHARE_EMBEDDINGS,
        "model.remat": REMATS,
        "model.parameterization": PARAMETERIZATIONS,
        "data.source": SOURCES,
        "data.target_form": TARGET_FORMS,
        "tokenizer.kind": TOKENIZERS,
        "batch.plan": PLANS,
        "optimizer.name": OPTIMIZERS,
        "optimizer.schedule": SCHEDULES,
        "training.objective": OBJECTIVES,
        "training.loss": TOKEN_LOSSES,
        "training.candidate_loss": CANDIDATE_LOSSES,
        "training.label_smoothing_support": LABEL_SMOOTHING_SUPPORTS,
        "decoding.strategy": STRATEGIES,
        "decoding.length_penalty_form": LENGTH_PENALTIES,
        "decoding.stopping": STOPPING_RULES,
        "decoding.mbr_utility": UTILITIES,
    }


def language_tokenizer(code: str) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language."""
    from transformer.decoding import bleu

    return bleu.language_tokenizer(code)
