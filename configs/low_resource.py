"""English-German translation from a tenth of Multi30k, to see what a pre-trained encoder is worth.

Command:   python -m transformer.train --config=configs/low_resource.py --workdir=runs/low-resource
           docs/experiments.md compares this with runs from a pre-trained encoder.
"""

import ml_collections

from configs import multi30k


def get_config() -> ml_collections.ConfigDict:
    config = multi30k.get_config()
    config.data.train_pairs = 2900
    config.model.dropout = 0.3
    config.training.steps = 600
    config.training.eval_every = 200
    config.optimizer.warmup_steps = 60
    return config
