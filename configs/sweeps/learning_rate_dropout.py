"""Learning rate and dropout of configs/multi30k.py, in six runs of half an epoch each.

Command:   python -m scripts.sweep --config=configs/multi30k.py
               --sweep=configs/sweeps/learning_rate_dropout.py --workdir=DIR
               --config.training.steps=150 --config.training.eval_every=150
               --config.optimizer.warmup_steps=50
Hardware:  ten minutes on two CPU cores.
"""


def get_sweep(sweep):
    trials = sweep.product(
        {"optimizer.learning_rate": [2.5e-3, 5e-3, 1e-2], "model.dropout": [0.1, 0.3]}
    )
    return sweep.listed(trials, objective="nll", pruner=None)
