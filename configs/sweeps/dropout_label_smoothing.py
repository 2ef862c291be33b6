"""Dropout and label smoothing in all combinations: Table 3, rows (D).

The objective is BLEU because smoothing makes the likelihood worse and BLEU better (section 5.4).
Command:   python -m scripts.sweep --config=configs/base.py
               --sweep=configs/sweeps/dropout_label_smoothing.py --workdir=DIR
Hardware:  nine runs of the config; not measured on WMT14.
"""


def get_sweep(sweep):
    trials = sweep.product(
        {"model.dropout": [0.0, 0.1, 0.2], "training.label_smoothing": [0.0, 0.1, 0.2]}
    )
    return sweep.listed(trials, objective="bleu", pruner=None)
