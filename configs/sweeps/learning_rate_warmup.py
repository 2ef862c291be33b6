"""Learning rate and warm-up: whether a longer warm-up allows a higher rate.

The rates are factors on the paper's schedule (section 5.3), so the config must use schedule=inverse_sqrt.
Command:   python -m scripts.sweep --config=configs/base.py --sweep=configs/sweeps/learning_rate_warmup.py --workdir=DIR
Hardware:  nine runs of the config; not measured on WMT14.
Result:    on 800 number words, an earlier synthetic task, one layer of width 64 and 8000 steps of 256 tokens with
           the paper's schedule take 15 minutes on two CPU cores shared with other work. The nll is 0.078 to 0.107,
           with no trend in either key.
"""


def get_sweep(sweep):
    trials = sweep.product({"optimizer.learning_rate": [0.5, 1.0, 2.0], "optimizer.warmup_steps": [2000, 4000, 8000]})
    return sweep.listed(trials, objective="nll", pruner=None)
