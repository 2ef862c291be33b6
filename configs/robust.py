"""Multi30k for text as people write it: capitals, typos, missing punctuation, emoji and tags.

Command:   python -m transformer.train --config=configs/robust.py --workdir=runs/robust
           python -m transformer.evaluate --workdir=runs/robust --split=test --checkpoint=last
               --average=10 --data=data/multi30k-typos
Data:      data/multi30k has the files of configs/multi30k.py. docs/noisy_text.md makes a copy of it
           for each kind, data/multi30k-KIND.
Hardware:  as configs/multi30k.py.
Expect:    41.1 BLEU on test2016 as configs/multi30k.py, and 31.4 in capitals and 29.2 with typos,
           where that config has 0.0 and 16.5 (one seed; docs/noisy_text.md).

An epoch reads a part of the clean pairs and a part of each copy, and other parts in the next epoch.
The parts add up to one copy, so an epoch is as long as an epoch of configs/multi30k.py.
"""

import ml_collections

from configs import multi30k

# The fraction of an epoch for each kind of scripts.get_data. The first four are the shares of
# Mozilla's models for Firefox.
SHARES = {
    "capitals": 0.07,
    "titles": 0.05,
    "typos": 0.05,
    "no_final_punctuation": 0.2,
    "emoji": 0.02,
    "numbers": 0.02,
    "placeholders": 0.02,
    "tags": 0.02,
}


def get_config() -> ml_collections.ConfigDict:
    config = multi30k.get_config()
    config.data.path = "data/multi30k"
    clean = f"label=clean weight={1 - sum(SHARES.values()):.2f}"
    copies = [
        f"label={kind} weight={share} path=data/multi30k-{kind}" for kind, share in SHARES.items()
    ]
    config.data.mixture = (clean, *copies)
    return config
