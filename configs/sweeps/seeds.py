"""Variation between seeds: the same config three times.

Command:   python -m scripts.sweep --config=configs/multi30k.py --sweep=configs/sweeps/seeds.py
               --workdir=DIR
Hardware:  three runs of the config.
"""


def get_sweep(sweep):
    return sweep.listed(sweep.seeds(3), objective="bleu", pruner=None)
