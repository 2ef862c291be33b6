"""Pre-training of the encoder of configs/multi30k.py as a masked language model of English
captions.

A translation model then starts from its parameters; docs/training.md compares it with random
initialization.
Command:   python -m transformer.train --config=configs/pretrain.py --workdir=runs/pretrain
           python -m transformer.train --config=configs/low_resource.py --workdir=runs/warm
               --config.training.init_from=runs/pretrain
Data:      the English side of Multi30k, as for configs/multi30k.py. Any other file STEM.en works
           too.
Hardware:  16 minutes on two CPU cores.
Expect:    a perplexity of 13.3 for the masked tokens of validation.
"""

import ml_collections

from configs import multi30k


def get_config() -> ml_collections.ConfigDict:
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
