"""Models of several widths in the standard and in the maximal update parameterization.

Command:   python -m scripts.sweep --config=configs/mup.py:mup-256 --sweep=configs/sweeps/mup.py
               --workdir=runs/mup/mup-256 --together
Hardware:  docs/scaling.md has the commands of all widths, which take an hour on two CPU cores.
Expect:    with mup 2^-7 or 2^-6 is the best learning rate of all widths; with standard it falls
           from 2^-5 to 2^-9.

The argument is PARAMETERIZATION-WIDTH. The task is that of configs/quickstart.py. At width 64, the
base, both parameterizations are the same.
"""

import ml_collections

from configs import quickstart
from configs.rules import choose

WIDTHS = (32, 64, 128, 256, 512)
MODELS = {f"{name}-{width}": (name, width) for name in ("standard", "mup") for width in WIDTHS}


def get_config(model: str = "mup-256") -> ml_collections.ConfigDict:
    parameterization, width = choose("model", model, MODELS)
    config = quickstart.get_config()
    config.model.parameterization = parameterization
    config.model.base_d_model = 64
    config.model.base_d_k = 16
    config.model.d_model = width
    config.model.d_ff = 2 * width
    config.data.max_length = 64
    config.batch.plan = "packed"  # one shape, as trials that train together need
    config.batch.packed_length = 64
    config.batch.tokens = 512
    config.training.steps = 150
    config.training.eval_every = 150
    config.training.eval_bleu = False
    config.optimizer.warmup_steps = 30
    config.checkpoint.every = 150
    config.checkpoint.keep = 1
    config.checkpoint.best_metric = "loss"
    return config
