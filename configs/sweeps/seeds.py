"""How much of a difference is luck? The same config with three seeds.

Command:   python -m scripts.sweep --config=configs/multi30k.py --sweep=configs/sweeps/seeds.py --workdir=DIR
Hardware:  three whole runs of the config. With an early configs/multi30k.py, 2 + 2 layers and 300 steps of 1024
           tokens (warm-up 50): 9 minutes on two CPU cores shared with other work; 10.2 +- 0.9 BLEU of 300 validation
           sentences, so early in training.
"""

from scripts.sweeping.description import Sweep, listed, seeds


def get_sweep() -> Sweep:
    return listed(seeds(3), objective="bleu", pruner=None)
