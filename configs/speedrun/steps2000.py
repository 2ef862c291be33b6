"""An entry of the race: the first entry in 2,000 steps instead of 2,400.

Command:   python -m scripts.reproduce speedrun --entry=configs/speedrun/steps2000.py
               --output=runs/speedrun-steps2000 --beside=configs/speedrun/baseline.py
Hardware:  9 minutes for each of five seeds on two CPU cores, in bfloat16.
Expect:    docs/speedrun.md has the BLEU score on validation.
"""

import ml_collections

from configs.speedrun import baseline


def get_config() -> ml_collections.ConfigDict:
    config = baseline.get_config()
    config.training.steps = 2000
    config.training.note = "2,000 steps instead of 2,400"
    return config


def get_average() -> int:
    """Returns the number of the last checkpoints whose mean is evaluated."""
    return 10
