"""Dropout and label smoothing in all combinations: Table 3, rows (D).

The objective is BLEU because smoothing makes the likelihood worse and BLEU better (section 5.4).
Command:   python -m scripts.sweep --config=configs/base.py --sweep=configs/sweeps/dropout_label_smoothing.py
               --workdir=DIR
Hardware:  nine runs of the config; not measured on WMT14.
Result:    an early version of configs/multi30k.py, with 2 + 2 layers and 100 steps of 1024 tokens (warm-up 20), takes
           16 minutes on two CPU cores shared with other work. So early in training, BLEU of 100 validation sentences
           is 3.4 to 3.6 without dropout, 1.5 with 0.1 and 1.1 with 0.2, whatever the smoothing.
"""


def get_sweep(sweep):
    trials = sweep.product({"model.dropout": [0.0, 0.1, 0.2], "training.label_smoothing": [0.0, 0.1, 0.2]})
    return sweep.listed(trials, objective="bleu", pruner=None)
