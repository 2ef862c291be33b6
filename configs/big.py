"""The big model of "Attention Is All You Need" on WMT14 English-German.

Data:      python -m scripts.get_data --tfds=wmt14_translate/de-en --output=data/tfds
Command:   python -m transformer.train --config=configs/big.py --workdir=runs/big
               --config.data.path=data/tfds
           python -m transformer.evaluate --workdir=runs/big --checkpoint=last --average=20
Hardware:  no run of ours yet. The paper used 8 P100 GPUs for 3.5 days; docs/devices.md estimates
           other accelerators.
Expect:    the paper's 28.4 on newstest2014 (Table 2; the settings are the last row of Table 3), to
           compare with `bleu_paper`: tokenized, with compounds split.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
    config = base.get_config()
    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.dropout = 0.3
    config.training.steps = 300_000
    config.checkpoint.keep = 20
    return config
