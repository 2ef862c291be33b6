"""An entry of the race: one pass of each sentence instead of R-Drop's two.

Command:   python -m scripts.reproduce speedrun --entry=configs/speedrun/one_pass.py
               --output=runs/speedrun-one-pass --beside=configs/speedrun/baseline.py
Hardware:  two CPU cores, in bfloat16.
Expect:    at least 41.0 BLEU, lower-cased and tokenized, on validation.

A step takes about half the time. Dropout alone regularizes, so it is as high as in the config of
Multi30k.
"""

import ml_collections

from configs import multi30k


def get_config() -> ml_collections.ConfigDict:
    config = multi30k.get_config()
    config.model.dropout = 0.1
    config.training.r_drop = 0.0
    config.training.steps = 3000
    config.training.note = "one pass of each sentence with dropout 0.1, and 3,000 steps"
    return config


def get_average() -> int:
    """Returns the number of the last checkpoints whose mean is evaluated."""
    return 10
