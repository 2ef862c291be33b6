"""Model size for a small corpus: width, depth and dropout, sampled by TPE.

Models have 0.66 to 12 million parameters without the embeddings, and as many decoder layers as the
config. A trial is pruned when its validation falls below the median of the other trials at the same
step.
Command:   python -m scripts.sweep --config=configs/multi30k.py --sweep=configs/sweeps/model_size.py
               --workdir=DIR
Hardware:  at most 24 runs of the config, most of them pruned early.
"""

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution


def get_sweep(sweep):
    return sweep.search(
        {
            # divisible by the config's 4 heads
            "model.d_model": CategoricalDistribution([128, 256, 384]),
            "model.d_ff": CategoricalDistribution([256, 512, 1024]),
            "model.num_layers": IntDistribution(2, 6),  # encoder layers
            "model.dropout": FloatDistribution(0.1, 0.4),
        },
        trials=24,
        objective="nll",
        sampler=lambda seed: optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
