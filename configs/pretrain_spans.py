"""Pre-training of encoder and decoder on both languages of Multi30k, by masked spans, as in T5.

Command:   python -m transformer.train --config=configs/pretrain_spans.py --workdir=runs/spans
           python -m transformer.train --config=configs/low_resource.py --workdir=runs/warm
               --config.training.init_from=runs/spans --config.tokenizer.shared=true
               --config.model.share_embeddings=all
Data:      Multi30k, as for configs/multi30k.py, without its alignment. Any other files STEM.en and
           STEM.de work too.
Hardware:  18 minutes on one CPU core with bfloat16.
Expect:    a translation model that starts from all parameters; docs/training.md explains it.
"""

import ml_collections

from configs import pretrain

GERMAN = "label=de source_language=de"
# A sentence of max_length tokens has three masked spans.
SENTINELS = tuple(f"<extra_id_{i}>" for i in range(3))


def get_config() -> ml_collections.ConfigDict:
    config = pretrain.get_config()
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
