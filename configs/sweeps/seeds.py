"""Variation between seeds: the same config three times.

Command:   python -m scripts.sweep --config=configs/multi30k.py --sweep=configs/sweeps/seeds.py --workdir=DIR
Hardware:  three runs of the config.
Result:    an early version of configs/multi30k.py, with 2 + 2 layers and 300 steps of 1024 tokens (warm-up 50), takes
           9 minutes on two CPU cores shared with other work. BLEU of 300 validation sentences is then 10.2 +- 0.9.
"""


def get_sweep(sweep):
    return sweep.listed(sweep.seeds(3), objective="bleu", pruner=None)
