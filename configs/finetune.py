"""Fine-tuning: a run on captions continues on 1,000 sentences about purchases and dates, with other
words.

Command:   python -m transformer.train --config=configs/multi30k.py --workdir=runs/multi30k
               --config.training.steps=800 --config.optimizer.warmup_steps=100
               --config.training.r_drop=0 --config.model.dropout=0.2
           python -m transformer.train --config=configs/finetune.py --workdir=runs/finetune
Data:      generated (transformer/data/sources/synthetic.py).
Hardware:  200 steps after those of the first run; 14 minutes on two busy CPU cores.
Expect:    BLEU 60 on the sentences and 1 on the captions (docs/training.md).
"""

import ml_collections

from configs import multi30k


def get_config() -> ml_collections.ConfigDict:
    config = multi30k.get_config()
    config.training.init_from = "runs/multi30k"
    config.model.dropout = 0.2
    config.data.source = "synthetic"
    config.data.name = "sentences"
    config.data.synthetic_examples = 1000

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 20
    config.training.steps = 200
    config.training.eval_every = 50
    return config
