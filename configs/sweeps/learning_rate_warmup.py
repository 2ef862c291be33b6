"""How high may the learning rate be, and does a longer warm-up let it be higher?

Factors on the paper's schedule (section 5.3), for configs that use it.
Command:   python -m scripts.sweep --config=configs/base.py --sweep=configs/sweeps/learning_rate_warmup.py --workdir=DIR
Hardware:  nine whole runs of the config; not run on WMT here. On 800 of the quickstart's numbers up to 999 (vocab_size
           60, max_length 32), with one layer of width 64 and 8000 steps of 256 tokens by the paper's schedule: 15
           minutes on two CPU cores shared with other work; nll from 0.078 to 0.107, without an order in either key.
"""

from scripts.sweeping.description import Sweep, listed, product


def get_sweep() -> Sweep:
    trials = product({"optimizer.learning_rate": [0.5, 1.0, 2.0], "optimizer.warmup_steps": [2000, 4000, 8000]})
    return listed(trials, objective="nll", pruner=None)
