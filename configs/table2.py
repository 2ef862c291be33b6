"""Table 2 of the paper: the base and the big model, from English to German and from English to
French (WMT14).

Data:      python -m scripts.get_data --tfds=wmt14_translate/fr-en --output=data/tfds (for German:
               de-en)
Command:   python -m transformer.train --config=configs/table2.py:base_en-fr
               --workdir=runs/base_en-fr --config.data.path=data/tfds
           python -m transformer.evaluate --workdir=runs/base_en-fr --checkpoint=last --average=5
               --split=test
           The paper averages 5 checkpoints of the base model and 20 of the big one (section 6.1).
Hardware:  no run of ours yet. The paper used 8 P100 GPUs, 12 hours for a base model and 3.5 days
           for a big one.
Expect:    the paper's BLEU on newstest2014, tokenized and for German with compounds split
           (`bleu_paper`):

           base_en-de  27.3      base_en-fr  38.1
           big_en-de   28.4      big_en-fr   41.8 (41.0 in an earlier version of the paper)
"""

import ml_collections

from configs import base, big
from configs.rules import choose

# Section 5.1: 32,000 word pieces. Here they are BPE, as for German.
FRENCH = {
    "data.name": "wmt14_translate/fr-en",
    "data.target_language": "fr",
    "tokenizer.vocab_size": 32_000,
}
# The configuration that a row starts from, and its changes.
ROWS = {
    "base_en-de": (base, {}),
    "base_en-fr": (base, FRENCH),
    "big_en-de": (big, {}),
    "big_en-fr": (big, FRENCH | {"model.dropout": 0.1}),
}


def get_config(row: str = "") -> ml_collections.ConfigDict:
    parent, changes = choose("row", row, ROWS)
    config = parent.get_config()
    config.update_from_flattened_dict(changes)
    return config
