"""Learning rate and warm-up: whether a longer warm-up allows a higher rate.

The rates are factors on the paper's schedule (section 5.3), so the config must use
schedule=inverse_sqrt.
Command:   python -m scripts.sweep --config=configs/base.py
               --sweep=configs/sweeps/learning_rate_warmup.py --workdir=DIR
Hardware:  nine runs of the config; not measured on WMT14.
"""


def get_sweep(sweep):
    trials = sweep.product(
        {"optimizer.learning_rate": [0.5, 1.0, 2.0], "optimizer.warmup_steps": [2000, 4000, 8000]}
    )
    return sweep.listed(trials, objective="nll", pruner=None)
