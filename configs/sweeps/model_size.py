"""How large a model does the data bear? Width, depth and dropout, chosen by a sampler that learns as it goes.

For small corpora: sizes from 0.66 to 12 million parameters beside the embeddings, with the config's two decoder layers.
A trial whose validation falls behind the median of the others' at the same step is given up.
Command:   python -m scripts.sweep --config=configs/multi30k.py --sweep=configs/sweeps/model_size.py --workdir=DIR
Hardware:  at most 24 runs of the config, most of them cut short. On 800 of the quickstart's numbers up to 999
           (vocab_size 60, max_length 32), with 60 steps of 256 tokens and a validation every 15: 16 minutes on two CPU
           cores shared with other work; 14 trials were given up, and the best were the smallest, with little dropout.
"""

import optuna

from scripts.sweeping.description import Sweep, choices, integers, search, uniform


def get_sweep() -> Sweep:
    return search(
        {
            "model.d_model": choices(128, 256, 384),  # heads of the config, 4, divide them all
            "model.d_ff": choices(256, 512, 1024),
            "model.num_layers": integers(2, 6, step=1),  # of the encoder
            "model.dropout": uniform(0.1, 0.4),
        },
        trials=24,
        objective="nll",
        sampler=lambda seed: optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
