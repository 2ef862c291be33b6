"""Dropout against label smoothing: Table 3, rows (D) of the paper, in all combinations.

The objective is BLEU: smoothing makes the likelihood worse and BLEU better (section 5.4).
Command:   python -m scripts.sweep --config=configs/base.py --sweep=configs/sweeps/dropout_label_smoothing.py
               --workdir=DIR
Hardware:  nine whole runs of the config; not run on WMT here.
"""

from scripts.sweeping.description import Sweep, listed, product


def get_sweep() -> Sweep:
    trials = product({"model.dropout": [0.0, 0.1, 0.2], "training.label_smoothing": [0.0, 0.1, 0.2]})
    return listed(trials, objective="bleu", pruner=None)
