"""Combinations of values that no run can have, although each value is allowed."""

import shlex
from collections.abc import Callable
from typing import Any

from transformer.config.tables import language_tokenizer, tables
from transformer.config.types import Config, guided_heads, head_widths, output_limit
from transformer.support.special_tokens import SPECIAL_PIECES


def _objective(training: Config) -> Any:
    return tables()["training.objective"][training.objective]


def _strategy(decoding: Config) -> Any:
    return tables()["decoding.strategy"][decoding.strategy]


def _lacks(training: Config, option: str) -> bool:
    """True if the objective has no such option, an entry of `TrainingObjective.options`."""
    return option not in _objective(training).options


def _takes_no_constraints(decoding: Config) -> bool:
    """True unless the search takes steps in the whole vocabulary."""
    return not _strategy(decoding).takes_steps or decoding.shortlist > 0


def _is_wrong_strategy(training: Config, decoding: Config) -> bool:
    required = _objective(training).strategy
    if required is not None:
        return decoding.strategy != required
    objectives = tables()["training.objective"].values()
    return decoding.strategy in [objective.strategy for objective in objectives]


def _exceeds_learned_positions(
    model: Config, decoding: Config, data: Config, training: Config
) -> bool:
    if model.positions != "learned":
        return False
    source = decoding.max_source_length
    longest = max(data.max_length, source)
    output = output_limit(source - 1, decoding) + 1
    stack_lengths = _objective(training).stack_lengths(model, longest, longest)
    return max(output, *stack_lengths) > model.max_positions


def _has_alignments(data: Config) -> bool:
    return any("alignments=" in text for text in data.mixture)


def _guides_missing_heads(training: Config, model: Config) -> bool:
    if training.guided_heads == "":
        return False
    heads = guided_heads(training)
    if not heads:
        return True
    num_layers = model.num_decoder_layers or model.num_layers
    return not all(layer < num_layers and head < model.num_heads for layer, head in heads)


def _compares_candidates(training: Config) -> bool:
    return tables()["training.candidate_loss"][training.candidate_loss] is not None


def _keys_of(corpus: str) -> set[str]:
    """Returns the keys of a corpus of a mixture; none if its quotation marks are wrong."""
    try:
        return {word.partition("=")[0] for word in shlex.split(corpus)}
    except ValueError:
        return set()


def _is_partly_grouped(training: Config, batch: Config, data: Config) -> bool:
    corpora = ["rewards" in _keys_of(text) for text in data.mixture]
    settings = [batch.plan == "groups", any(corpora), *corpora]
    return any(setting != _compares_candidates(training) for setting in settings)


def _compares_more_than_candidates(training: Config, data: Config) -> bool:
    if not _compares_candidates(training):
        return False
    # The message names the values up to the first that is not allowed.
    others = {"pair_weights", "alignments", "weight"}
    return (
        training.r_drop > 0
        or data.context > 0
        or data.deduplicate
        or data.mixture_temperature > 1
        or any(not others.isdisjoint(_keys_of(text)) for text in data.mixture)
    )


def _cannot_hold_longest_pairs(batch: Config, data: Config) -> bool:
    if batch.plan not in ("buckets", "groups"):
        return False
    rows = batch.row_multiple
    if batch.plan == "groups":
        rows *= batch.candidates
    # The longest length such that a batch holds these rows. It is a multiple of `length_multiple`.
    length = batch.tokens // rows
    length = length // batch.length_multiple * batch.length_multiple
    return length < data.max_length


def _is_mup(model: Config) -> bool:
    return model.parameterization == "mup"


def _lacks_last_norm(model: Config) -> bool:
    # The last layer of a post-norm stack ends in a norm, unless LayerDrop leaves the layer out.
    if model.norm_position == "post":
        return model.layer_drop > 0 and not model.final_norm
    return model.final_norm is False


def _has_constraints(decoding: Config) -> bool:
    # All are read, so that the message names them all.
    return any(
        (decoding.min_length, decoding.no_repeat_ngram, decoding.banned, decoding.banned_pieces)
    )


def _lacks_output_rule(decoding: Config, data: Config) -> bool:
    form = tables()["data.target_form"][data.target_form]
    return decoding.well_formed and form.output_rule is None


# Conditions under which no run is possible, by the advice that ends the error message. The
# parameters of a condition are the groups of the configuration that it reads. The message names the
# values in the order in which the condition reads them.
COMBINATIONS: dict[str, Callable[..., bool]] = {
    # Widths and positions of the model.
    "d_model must be divisible by num_heads, or set both d_k and d_v": lambda model: (
        model.d_model % model.num_heads != 0 and None in (model.d_k, model.d_v)
    ),
    "sinusoidal positions need an even d_model; "
    "make it even, or use positions=learned or rotary": lambda model: (
        model.positions.startswith("sinusoidal") and model.d_model % 2 != 0
    ),
    "num_heads must be divisible by num_key_heads": lambda model: (
        model.num_heads % (model.num_key_heads or model.num_heads) != 0
    ),
    "rotary and shaw positions need dot-product attention; "
    "use attention=dot_product or other positions": lambda model: (
        model.positions in ("rotary", "shaw") and model.attention != "dot_product"
    ),
    "shaw and t5 positions are parameters of self-attention; "
    "set decoder_self_attention=attention or other positions": lambda model: (
        model.positions in ("shaw", "t5", "t5_per_layer")
        and model.decoder_self_attention != "attention"
    ),
    "rotary positions need an even head width; "
    "make d_k, or d_model / num_heads, even": lambda model: (
        model.positions == "rotary" and head_widths(model)[0] % 2 != 0
    ),
    "shared embeddings need a shared vocabulary; "
    "use share_embeddings=target or shared=true": lambda model, tokenizer: (
        model.share_embeddings in ("all", "inputs") and not tokenizer.shared
    ),
    # Maximal update parameterization.
    "mup compares the model with a base model; set base_d_model and base_d_k": lambda model: (
        _is_mup(model) and None in (model.base_d_model, model.base_d_k)
    ),
    "mup has no scales for this attention; set attention=dot_product": lambda model: (
        _is_mup(model) and model.attention != "dot_product"
    ),
    "mup scales the norm before the logits; set final_norm=true": lambda model: (
        _is_mup(model) and _lacks_last_norm(model)
    ),
    "inverse_sqrt changes the rate with d_model, as mup does; "
    "set schedule=constant, linear or cosine": lambda model, optimizer: (
        _is_mup(model) and optimizer.schedule == "inverse_sqrt"
    ),
    "mup has rates for adam, adamw and muon; "
    "set one of them, or parameterization=standard": lambda model, optimizer: (
        _is_mup(model) and optimizer.name not in ("adam", "adamw", "muon")
    ),
    # What the objective supports.
    "an objective has source_language and target_language for the sides that it reads; "
    "leave the others empty": lambda data, training: (
        (bool(data.source_language), bool(data.target_language)) != _objective(training).sides
    ),
    "monolingual text has one vocabulary; set shared=true": lambda training, tokenizer: (
        not _objective(training).has_both_sides and not tokenizer.shared
    ),
    "only translations have BLEU; "
    "set eval_bleu=false and checkpoint.best_metric=loss": lambda training: (
        not _objective(training).has_both_sides and training.eval_bleu
    ),
    "an objective and a strategy of the same name need each other; "
    "set both or neither": _is_wrong_strategy,
    "learned positions must cover max_length, max_source_length (ctc_frames times with CTC) and "
    "max_source_length x max_length_factor + max_extra_length; "
    "raise max_positions or lower the others": _exceeds_learned_positions,
    "this objective reads one sentence a row; set plan=buckets": lambda training, batch: (
        _lacks(training, "packed") and batch.plan == "packed"
    ),
    "this objective has its own loss; set loss=cross_entropy": lambda training: (
        _lacks(training, "loss") and training.loss != "cross_entropy"
    ),
    "this objective has no label smoothing; set label_smoothing=0": lambda training: (
        _lacks(training, "label_smoothing") and training.label_smoothing > 0
    ),
    "this objective has no weights of pairs; "
    "use a mixture without pair_weights": lambda training, data: (
        _lacks(training, "pair_weights") and any("pair_weights=" in text for text in data.mixture)
    ),
    # Guided alignment.
    "only models that translate step by step have cross-attention to guide; "
    "use a mixture without alignments": lambda training, data: (
        _lacks(training, "alignments") and _has_alignments(data)
    ),
    "guided heads learn the alignments of a mixture; "
    "set guided_heads and a corpus with alignments=FILE, or neither": lambda training, data: (
        bool(training.guided_heads) != _has_alignments(data)
    ),
    "guided_heads are LAYER.HEAD,... of the decoder, "
    "from 1.1 to num_decoder_layers.num_heads": _guides_missing_heads,
    "fused attention computes no weights that alignments could guide; "
    "set attention_implementation=plain": lambda training, model: (
        training.guided_heads != "" and model.attention_implementation != "plain"
    ),
    "alignments are of the words of single sentences; "
    "leave source_tag empty and context=0": lambda data: (
        _has_alignments(data) and (data.source_tag != "" or data.context > 0)
    ),
    "unknown words in a row are one token, so that alignments cannot count words; "
    "use another tokenizer.kind": lambda data, tokenizer: (
        _has_alignments(data) and tokenizer.kind == "word"
    ),
    # Candidates.
    "only models that translate step by step compare candidates; "
    "set candidate_loss=none": lambda training: (
        _compares_candidates(training) and _lacks(training, "candidate_loss")
    ),
    "candidates need a loss, a plan and rewards; set candidate_loss, plan=groups and a mixture "
    "of corpora with rewards=FILE each, or none of them": _is_partly_grouped,
    "candidates are compared in one pass, and an epoch reads each of them once; set r_drop=0, "
    "context=0, deduplicate=false, mixture_temperature=1, and no key of a mixture that weighs or "
    "aligns its pairs": _compares_more_than_candidates,
    "without candidates the likelihood is the loss; "
    "set likelihood_weight=0, or candidate_loss": lambda training: (
        training.likelihood_weight > 0 and not _compares_candidates(training)
    ),
    # Corpora and vocabularies.
    "the corpora of a mixture have train_pairs and exclude of their own; "
    "set train_pairs=0 and an empty exclude": lambda data: (
        data.mixture != () and (data.train_pairs > 0 or data.exclude != "")
    ),
    "only a vocabulary that the run makes has user_symbols; "
    "leave user_symbols or model_file empty": lambda tokenizer: (
        tokenizer.user_symbols != ()
        and (tokenizer.model_file != "" or tokenizer.kind in ("ids", "pieces"))
    ),
    "BLEU as a utility is of words between spaces; set mbr_utility=chrf": lambda decoding, data: (
        decoding.mbr_utility == "bleu" and language_tokenizer(data.target_language) != "13a"
    ),
    "outputs of a language model begin with the prompt; "
    "set max_length_factor=1 and max_extra_length=NEW_TOKENS": lambda training, decoding: (
        training.objective == "causal_lm" and decoding.max_length_factor < 1
    ),
    "the vocabulary has tokens of this name for other purposes; "
    "choose another word": lambda data, tokenizer: (
        not {data.source_tag, *tokenizer.user_symbols}.isdisjoint(SPECIAL_PIECES)
    ),
    # The parent of a run.
    "a run without a parent has its own vocabulary; "
    "set init_from or init_vocabulary=parent": lambda training: (
        training.init_vocabulary == "own" and not training.init_from
    ),
    "the optimizer's state belongs to all parameters of a parent; set init_optimizer=false, "
    "or init_from, an empty init_skip and init_vocabulary=parent": lambda training: (
        training.init_optimizer
        and (
            not training.init_from or training.init_skip != "" or training.init_vocabulary == "own"
        )
    ),
    "R-Drop compares the distributions of two passes at the same target token; "
    "set r_drop=0": lambda training: _lacks(training, "r_drop") and training.r_drop > 0,
    "this objective's model has no decoder; "
    "leave decoder_start=bos and decoder_self_attention=attention": lambda training, model: (
        _lacks(training, "decoder")
        and (model.decoder_start, model.decoder_self_attention) != ("bos", "attention")
    ),
    "source=ids needs kind=ids, and kind=ids needs source=ids; "
    "set both or neither": lambda data, tokenizer: (
        (data.source == "ids") != (tokenizer.kind == "ids")
    ),
    "integers have no words for tags and between sentences; "
    "leave source_tag empty and context=0": lambda tokenizer, data: (
        tokenizer.kind == "ids" and (data.source_tag != "" or data.context > 0)
    ),
    "only bpe and unigram support subword_sampling and byte_fallback; "
    "set them to 0 and false": lambda tokenizer: (
        tokenizer.kind not in ("bpe", "unigram")
        and (tokenizer.subword_sampling > 0 or tokenizer.byte_fallback)
    ),
    "span_corruption masks the best segmentation of a whole text and predicts its tokens; "
    "set subword_sampling=0, shared=true and an empty source_tag": (
        lambda training, tokenizer, data: (
            training.objective == "span_corruption"
            and any((tokenizer.subword_sampling > 0, not tokenizer.shared, data.source_tag != ""))
        )
    ),
    "a shared tokenizer has one model file, others have SOURCE,TARGET": lambda tokenizer: (
        tokenizer.model_file != ""
        and tokenizer.model_file.count(",") != (0 if tokenizer.shared else 1)
    ),
    # Batches.
    "a packed row must hold the longest pair; "
    "raise packed_length or lower max_length": lambda batch, data: (
        batch.plan == "packed" and batch.packed_length < data.max_length
    ),
    "a batch must hold row_multiple pairs of max_length, rounded up to length_multiple, or with "
    "plan=groups row_multiple x candidates; raise tokens or lower the others": (
        _cannot_hold_longest_pairs
    ),
    "a batch must hold row_multiple rows of packed_length; "
    "raise tokens or lower the other two": lambda batch: (
        batch.plan == "packed" and batch.tokens < batch.row_multiple * batch.packed_length
    ),
    # Training and validation.
    "adam has no weight decay; use adamw or set weight_decay=0": lambda optimizer: (
        optimizer.name == "adam" and optimizer.weight_decay > 0
    ),
    "schedule_free_adamw averages parameters instead of lowering the rate; "
    "set schedule=constant": lambda optimizer: (
        optimizer.name == "schedule_free_adamw" and optimizer.schedule != "constant"
    ),
    "schedule_free_adamw computes gradients at a mean with weight beta1; "
    "set beta1 above 0": lambda optimizer: (
        optimizer.name == "schedule_free_adamw" and optimizer.beta1 == 0
    ),
    "schedule_free_adamw averages parameters itself; set ema_decay=0": lambda optimizer, training: (
        optimizer.name == "schedule_free_adamw" and training.ema_decay > 0
    ),
    "warm-up is longer than training; "
    "lower warmup_steps or raise steps": lambda optimizer, training: (
        optimizer.warmup_steps > training.steps
    ),
    "training ends before the first validation; lower eval_every or raise steps": lambda training: (
        training.eval_every > training.steps
    ),
    # Decoding.
    "a shortlist is for beam search with translation models; "
    "set shortlist=0": lambda decoding, training: (
        decoding.shortlist > 0
        and (_lacks(training, "shortlist") or "shortlist" not in _strategy(decoding).options)
    ),
    "a coverage penalty is for beam search with translation models in the whole vocabulary; "
    "set coverage_penalty=0": lambda decoding, training: (
        decoding.coverage_penalty > 0
        and (
            _lacks(training, "shortlist")
            or "coverage_penalty" not in _strategy(decoding).options
            or decoding.shortlist > 0
        )
    ),
    "models rerank the hypotheses of a beam; "
    "set strategy=beam or ctc and beam_size=2 or more, or an empty rerank": lambda decoding: (
        decoding.rerank != ""
        and ("rerank" not in _strategy(decoding).options or decoding.beam_size < 2)
    ),
    "a scorer is a command that prints a number for each line of {hypothesis}; "
    "give it in decoding.scorer, or name no scorer": lambda decoding: (
        decoding.scorer == ""
        and (
            (decoding.mbr_utility == "scorer" and _strategy(decoding).has_utility)
            or any(item.startswith("scorer:") for item in decoding.rerank.split(","))
        )
    ),
    "documents are translated by steps in the whole vocabulary; "
    "set context=0, or shortlist=0, an empty rerank and another strategy": lambda data, decoding: (
        data.context > 0
        and (
            decoding.shortlist > 0
            or decoding.rerank != ""
            or not _strategy(decoding).takes_steps
            or decoding.mbr_utility == "scorer"
        )
    ),
    "constraints need a search by steps in the whole vocabulary; set shortlist=0 and another "
    "strategy, or min_length=0, no_repeat_ngram=0 and empty banned and banned_pieces": (
        lambda decoding: _has_constraints(decoding) and _takes_no_constraints(decoding)
    ),
    # Trees.
    "outputs of this form are not trees; "
    "set target_form=tree or well_formed=false": _lacks_output_rule,
    "trees need a search by steps in the whole vocabulary; "
    "set shortlist=0 and another strategy, or well_formed=false": lambda decoding: (
        decoding.well_formed and _takes_no_constraints(decoding)
    ),
    "a tree ends when it is closed, and repeats its symbols; set min_length=0, no_repeat_ngram=0, "
    "and empty banned and banned_pieces, or well_formed=false": lambda decoding: (
        decoding.well_formed and _has_constraints(decoding)
    ),
    "a tree has at least two tokens more than its sentence; "
    "set max_length_factor=1 and max_extra_length=2 or more, or well_formed=false": (
        lambda decoding: (
            decoding.well_formed
            and (decoding.max_length_factor < 1 or decoding.max_extra_length < 2)
        )
    ),
    "the leaves of a tree are the words of one sentence; "
    "leave source_tag empty and context=0, or set well_formed=false": lambda decoding, data: (
        decoding.well_formed and (data.source_tag != "" or data.context > 0)
    ),
    "unknown words in a row are one token, so that words cannot be counted; "
    "use another tokenizer.kind, or well_formed=false": lambda decoding, tokenizer: (
        decoding.well_formed and tokenizer.kind == "word"
    ),
}
