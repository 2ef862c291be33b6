"""How much of a difference is luck? The same config with three seeds.

Command:   python -m scripts.sweep --config=configs/multi30k.py --sweep=configs/sweeps/seeds.py --workdir=DIR
Hardware:  three whole runs of the config.
"""

from scripts.sweeping.description import Sweep, listed, seeds


def get_sweep() -> Sweep:
    return listed(seeds(3), objective="bleu", pruner=None)
