"""Pre-training on the captions of Multi30k, without their translations.

A translation model then starts from these parameters; docs/training.md compares it with random
initialization.

Command:   python -m transformer.train --config=configs/pretrain.py --workdir=runs/pretrain
           python -m transformer.train --config=configs/low_resource.py --workdir=runs/warm
               --config.training.init_from=runs/pretrain
Rows:      masked_lm (the default): the encoder, as a masked language model of English.
           span_corruption: encoder and decoder, by masked spans of both languages, as T5 does it.
Data:      Multi30k, as for configs/multi30k.py. Any other files STEM.en and STEM.de work too.
Hardware:  masked_lm: 16 minutes on two CPU cores.
Expect:    masked_lm: a perplexity of 13.3 for the masked tokens of validation.
"""

import ml_collections

from configs import multi30k
from configs.rules import choose

GERMAN = "label=de source_language=de"
# A sentence of max_length tokens has three masked spans.
SENTINELS = tuple(f"<extra_id_{i}>" for i in range(3))


def masked_lm() -> ml_collections.ConfigDict:
    config = multi30k.get_config()
    config.training.objective = "masked_lm"
    config.model.dropout = 0.2
    config.data.target_language = ""
    config.tokenizer.shared = True  # one language has one vocabulary
    config.training.whole_word_masking = True
    config.training.r_drop = 0.0
    config.training.label_smoothing = 0.0
    config.training.eval_bleu = False
    config.checkpoint.best_metric = "loss"

    config.batch.tokens = 4096
    config.training.steps = 2000
    config.training.eval_every = 500
    config.optimizer.warmup_steps = 200
    return config


def span_corruption() -> ml_collections.ConfigDict:
    config = masked_lm()
    config.training.objective = "span_corruption"
    config.training.whole_word_masking = False
    config.data.mixture = ("label=en", GERMAN)
    config.data.valid_sets = (GERMAN,)
    config.tokenizer.vocab_size = 9000
    config.tokenizer.user_symbols = SENTINELS
    config.model.share_embeddings = "all"
    # Packed rows would have much padding, because the masked spans are short.
    config.batch.plan = "buckets"
    config.batch.max_buckets = 4
    config.checkpoint.best_metric = "loss/mean"
    return config


ROWS = {"masked_lm": masked_lm, "span_corruption": span_corruption}


def get_config(row: str = "masked_lm") -> ml_collections.ConfigDict:
    """Returns the configuration of a row. Raises UnknownName for an unknown row."""
    return choose("row", row, ROWS)()
