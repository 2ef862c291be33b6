"""Combinations of values that no run can have, although each value is allowed."""

from collections.abc import Callable
from typing import Any

from transformer.config.tables import language_tokenizer, tables
from transformer.config.types import Config, guided_heads, head_widths, output_limit
from transformer.support.special_tokens import SPECIAL_PIECES


def _objective(c: Config) -> Any:
    return tables()["training.objective"][c.training.objective]


def _lacks(c: Config, option: str) -> bool:
    return option not in _objective(c).options


def _is_wrong_strategy(c: Config) -> bool:
    reserved = {objective.strategy for objective in tables()["training.objective"].values()} - {
        None
    }
    needed = _objective(c).strategy
    return c.decoding.strategy in reserved if needed is None else c.decoding.strategy != needed


def _longest_sequence(c: Config) -> int:
    source, longest = (
        c.decoding.max_source_length,
        max(c.data.max_length, c.decoding.max_source_length),
    )
    return max(
        output_limit(source - 1, c.decoding) + 1,
        *_objective(c).stack_lengths(c.model, longest, longest),
    )


def _has_alignments(c: Config) -> bool:
    return any("alignments=" in text for text in c.data.mixture)


def _guides_own_heads(c: Config) -> bool:
    heads = guided_heads(c.training)
    if not heads:
        return False
    num_layers = c.model.num_decoder_layers or c.model.num_layers
    return all(layer < num_layers and head < c.model.num_heads for layer, head in heads)


# Conditions under which no run is possible, by the advice that ends the error message.
COMBINATIONS: dict[str, Callable[[Config], bool]] = {
    "d_model must be divisible by num_heads, or set both d_k and d_v": (
        lambda c: c.model.d_model % c.model.num_heads != 0 and None in (c.model.d_k, c.model.d_v)
    ),
    "sinusoidal positions need an even d_model; make it even, or use positions=learned or rotary": (
        lambda c: c.model.positions.startswith("sinusoidal") and c.model.d_model % 2 != 0
    ),
    "num_heads must be divisible by num_key_heads": (
        lambda c: c.model.num_heads % (c.model.num_key_heads or c.model.num_heads) != 0
    ),
    "rotary and shaw positions need dot-product attention; use attention=dot_product or other positions": (
        lambda c: c.model.positions in ("rotary", "shaw") and c.model.attention != "dot_product"
    ),
    "shaw and t5 positions are parameters of self-attention; set decoder_self_attention=attention or other positions": (
        lambda c: (
            c.model.positions in ("shaw", "t5") and c.model.decoder_self_attention != "attention"
        )
    ),
    "rotary positions need an even head width; make d_k, or d_model / num_heads, even": (
        lambda c: c.model.positions == "rotary" and head_widths(c.model)[0] % 2 != 0
    ),
    "shared embeddings need a shared vocabulary; use share_embeddings=target or shared=true": (
        lambda c: c.model.share_embeddings == "all" and not c.tokenizer.shared
    ),
    "an objective has source_language and target_language for the sides that it reads; leave the others empty": (
        lambda c: (
            (bool(c.data.source_language), bool(c.data.target_language)) != _objective(c).sides
        )
    ),
    "monolingual text has one vocabulary; set shared=true": (
        lambda c: not _objective(c).translates and not c.tokenizer.shared
    ),
    "only translations have BLEU; set eval_bleu=false and checkpoint.best_metric=loss": (
        lambda c: not _objective(c).translates and c.training.eval_bleu
    ),
    "an objective and a strategy of the same name need each other; set both or neither": _is_wrong_strategy,
    "learned positions must cover max_length, max_source_length (ctc_frames times with CTC) and max_source_length x "
    "max_length_factor + max_extra_length; raise max_positions or lower the others": (
        lambda c: c.model.positions == "learned" and _longest_sequence(c) > c.model.max_positions
    ),
    "only translation models read word vectors; leave source_vectors and target_vectors empty": (
        lambda c: (
            _lacks(c, "word_vectors") and bool(c.model.source_vectors or c.model.target_vectors)
        )
    ),
    "this objective reads one sentence a row; set plan=buckets": (
        lambda c: _lacks(c, "packed") and c.batch.plan == "packed"
    ),
    "this objective has no label smoothing; set label_smoothing=0": (
        lambda c: _lacks(c, "label_smoothing") and c.training.label_smoothing > 0
    ),
    "this objective has no weights of pairs; use a mixture without pair_weights": (
        lambda c: (
            _lacks(c, "pair_weights") and any("pair_weights=" in text for text in c.data.mixture)
        )
    ),
    "only models that translate step by step have cross-attention to guide; use a mixture without alignments": (
        lambda c: _lacks(c, "alignments") and _has_alignments(c)
    ),
    "guided heads learn the alignments of a mixture; set guided_heads and a corpus with alignments=FILE, or neither": (
        lambda c: bool(c.training.guided_heads) != _has_alignments(c)
    ),
    "guided_heads are LAYER.HEAD,... of the decoder, from 1.1 to num_decoder_layers.num_heads": (
        lambda c: c.training.guided_heads != "" and not _guides_own_heads(c)
    ),
    "fused attention computes no weights that alignments could guide; set attention_implementation=plain": (
        lambda c: c.training.guided_heads != "" and c.model.attention_implementation != "plain"
    ),
    "alignments are of the words of single sentences; leave source_tag empty and context=0": (
        lambda c: _has_alignments(c) and (c.data.source_tag != "" or c.data.context > 0)
    ),
    "unknown words in a row are one token, so that alignments cannot count words; use another tokenizer.kind": (
        lambda c: _has_alignments(c) and c.tokenizer.kind == "word"
    ),
    "the corpora of a mixture have train_pairs and exclude of their own; set train_pairs=0 and an empty exclude": (
        lambda c: c.data.mixture != () and (c.data.train_pairs > 0 or c.data.exclude != "")
    ),
    "only a vocabulary that the run makes has user_symbols; leave user_symbols or model_file empty": (
        lambda c: (
            c.tokenizer.user_symbols != ()
            and (
                c.tokenizer.model_file != ""
                or c.tokenizer.kind not in ("bpe", "unigram", "word", "char")
            )
        )
    ),
    "BLEU as a utility is of words between spaces; set mbr_utility=chrf": (
        lambda c: (
            c.decoding.mbr_utility == "bleu" and language_tokenizer(c.data.target_language) != "13a"
        )
    ),
    "outputs of a language model begin with the prompt; set max_length_factor=1 and max_extra_length=NEW_TOKENS": (
        lambda c: c.training.objective == "causal_lm" and c.decoding.max_length_factor < 1
    ),
    "the vocabulary has tokens of this name for other purposes; choose another word": (
        lambda c: not {c.data.source_tag, *c.tokenizer.user_symbols}.isdisjoint(SPECIAL_PIECES)
    ),
    "a run without a parent has its own vocabulary; set init_from or init_vocabulary=parent": (
        lambda c: c.training.init_vocabulary == "own" and not c.training.init_from
    ),
    "the optimizer's state belongs to all parameters of a parent; set init_optimizer=false, or init_from, an empty "
    "init_skip and init_vocabulary=parent": (
        lambda c: (
            c.training.init_optimizer
            and (
                not c.training.init_from
                or c.training.init_skip != ""
                or c.training.init_vocabulary == "own"
            )
        )
    ),
    "R-Drop compares the distributions of two passes at the same target token; set r_drop=0": (
        lambda c: _lacks(c, "r_drop") and c.training.r_drop > 0
    ),
    "this objective's model has no decoder; leave decoder_start=bos and decoder_self_attention=attention": (
        lambda c: (
            _lacks(c, "decoder")
            and (c.model.decoder_start, c.model.decoder_self_attention) != ("bos", "attention")
        )
    ),
    "source=ids needs kind=ids, and kind=ids needs source=ids; set both or neither": (
        lambda c: (c.data.source == "ids") != (c.tokenizer.kind == "ids")
    ),
    "integers have no words for tags and between sentences; leave source_tag empty and context=0": (
        lambda c: c.tokenizer.kind == "ids" and (c.data.source_tag != "" or c.data.context > 0)
    ),
    "only bpe and unigram support subword_sampling and byte_fallback; set them to 0 and false": (
        lambda c: (
            c.tokenizer.kind not in ("bpe", "unigram")
            and (c.tokenizer.subword_sampling > 0 or c.tokenizer.byte_fallback)
        )
    ),
    "embeddings come from another run or from files; set init_from, or source_vectors and target_vectors": (
        lambda c: bool(c.training.init_from and (c.model.source_vectors or c.model.target_vectors))
    ),
    "a shared tokenizer has one model file, others have SOURCE,TARGET": (
        lambda c: (
            c.tokenizer.model_file != ""
            and c.tokenizer.model_file.count(",") != (0 if c.tokenizer.shared else 1)
        )
    ),
    "a packed row must hold the longest pair; raise packed_length or lower max_length": (
        lambda c: c.batch.plan == "packed" and c.batch.packed_length < c.data.max_length
    ),
    "a batch must hold row_multiple pairs of max_length, rounded up to length_multiple; "
    "raise tokens or lower the others": (
        lambda c: (
            c.batch.plan == "buckets"
            # The longest sentences of which a batch holds row_multiple.
            and c.batch.tokens
            // c.batch.row_multiple
            // c.batch.length_multiple
            * c.batch.length_multiple
            < c.data.max_length
        )
    ),
    "a batch must hold row_multiple rows of packed_length; raise tokens or lower the other two": (
        lambda c: (
            c.batch.plan == "packed"
            and c.batch.tokens < c.batch.row_multiple * c.batch.packed_length
        )
    ),
    "adam has no weight decay; use adamw or set weight_decay=0": (
        lambda c: c.optimizer.name == "adam" and c.optimizer.weight_decay > 0
    ),
    "warm-up is longer than training; lower warmup_steps or raise steps": (
        lambda c: c.optimizer.warmup_steps > c.training.steps
    ),
    "training ends before the first validation; lower eval_every or raise steps": (
        lambda c: c.training.eval_every > c.training.steps
    ),
    "bleu is not computed; set eval_bleu=true or best_metric=loss": (
        lambda c: c.checkpoint.best_metric.partition("/")[0] == "bleu" and not c.training.eval_bleu
    ),
    "a shortlist is for beam search with translation models; set shortlist=0": (
        lambda c: (
            c.decoding.shortlist > 0 and (_lacks(c, "shortlist") or c.decoding.strategy != "beam")
        )
    ),
    "a coverage penalty is for beam search with translation models in the whole vocabulary; set coverage_penalty=0": (
        lambda c: (
            c.decoding.coverage_penalty > 0
            and (
                _lacks(c, "shortlist") or c.decoding.strategy != "beam" or c.decoding.shortlist > 0
            )
        )
    ),
    "models rerank the hypotheses of a beam; set strategy=beam or ctc and beam_size=2 or more, or an empty rerank": (
        lambda c: (
            c.decoding.rerank != ""
            and (c.decoding.strategy not in ("beam", "ctc") or c.decoding.beam_size < 2)
        )
    ),
    "documents are translated by steps in the whole vocabulary; set context=0, or shortlist=0, an empty rerank and "
    "another strategy": (
        lambda c: (
            c.data.context > 0
            and (
                c.decoding.shortlist > 0 or c.decoding.rerank != "" or c.decoding.strategy == "ctc"
            )
        )
    ),
    "constraints need a search by steps in the whole vocabulary; set shortlist=0 and another strategy, or "
    "min_length=0, no_repeat_ngram=0 and empty banned and banned_pieces": (
        lambda c: (
            any(
                (
                    c.decoding.min_length,
                    c.decoding.no_repeat_ngram,
                    c.decoding.banned,
                    c.decoding.banned_pieces,
                )
            )
            and (c.decoding.strategy == "ctc" or c.decoding.shortlist > 0)
        )
    ),
}
