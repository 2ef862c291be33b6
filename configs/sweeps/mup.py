"""Learning rates from 2^-11 to 2^-5, for a curve of configs/mup.py.

Command:   python -m scripts.sweep --config=configs/mup.py:mup-128 --sweep=configs/sweeps/mup.py
               --workdir=runs/mup/mup-128 --together
"""


def get_sweep(sweep):
    rates = [2.0**exponent for exponent in range(-11, -4)]
    trials = sweep.product({"optimizer.learning_rate": rates})
    return sweep.listed(trials, objective="nll", pruner=None)
