"""English-German translation trained on a tenth of Multi30k, the baseline for pre-training.

docs/training.md compares this config with and without the parameters of configs/pretrain.py and
configs/pretrain_spans.py.
Command:   python -m transformer.train --config=configs/low_resource.py --workdir=runs/low-resource
Hardware:  5 minutes on one CPU core with bfloat16.
Expect:    18.1 +- 0.3 BLEU on test2016 (three seeds).
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
