"""How high may the learning rate be, and does a longer warm-up let it be higher?

Factors on the paper's schedule (section 5.3), for configs that use it.
Command:   python -m scripts.sweep --config=configs/base.py --sweep=configs/sweeps/learning_rate_warmup.py --workdir=DIR
Hardware:  nine whole runs of the config; not run on WMT here. With the quickstart's data up to 999, one layer of width 64,
           256 tokens a batch and 8000 steps of the paper's schedule each: 15 minutes on two CPU cores shared with other
           work. So small a model does not care: nll 0.078 to 0.107, without an order in either key.
"""

from scripts.sweeping.description import Sweep, listed, product


def get_sweep() -> Sweep:
    trials = product({"optimizer.learning_rate": [0.5, 1.0, 2.0], "optimizer.warmup_steps": [2000, 4000, 8000]})
    return listed(trials, objective="nll", pruner=None)
