"""Dropout against label smoothing: Table 3, rows (D) of the paper, in all combinations.

The objective is BLEU: smoothing makes the likelihood worse and BLEU better (section 5.4).
Command:   python -m scripts.sweep --config=configs/base.py --sweep=configs/sweeps/dropout_label_smoothing.py
               --workdir=DIR
Hardware:  nine whole runs of the config; not run on WMT here. On an early configs/multi30k.py, with 2 + 2 layers
           and 100 steps of 1024 tokens (warm-up 20): 16 minutes on two CPU cores shared with other work. So early,
           BLEU of 100 validation sentences 3.4 to 3.6 without dropout, 1.5 and 1.1 with 0.1 and 0.2, whatever the
           smoothing.
"""

from scripts.sweeping.description import Sweep, listed, product


def get_sweep() -> Sweep:
    trials = product({"model.dropout": [0.0, 0.1, 0.2], "training.label_smoothing": [0.0, 0.1, 0.2]})
    return listed(trials, objective="bleu", pruner=None)
