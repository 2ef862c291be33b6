"""English-German translation trained on a tenth of Multi30k, the baseline for a pre-trained
encoder.

docs/training.md compares this config with and without the encoder of configs/pretrain.py.
Command:   python -m transformer.train --config=configs/low_resource.py --workdir=runs/low-resource
Hardware:  a quarter of an hour on one CPU core.
Expect:    18.5 +- 0.4 BLEU on test2016 (three seeds).
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
