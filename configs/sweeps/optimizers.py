"""Optimizers, each with five learning rates, on the model of configs/multi30k.py.

Command:   python -m scripts.sweep --config=configs/multi30k.py --sweep=configs/sweeps/optimizers.py
               --workdir=runs/optimizers --config.training.r_drop=0 --config.batch.tokens=3072
               --config.training.steps=800 --config.training.eval_every=400
               --config.optimizer.warmup_steps=100 --jobs=2
Hardware:  an hour on two CPU cores in bfloat16.

Each optimizer has its usual schedule, and neighbouring rates differ by a factor of two. All have
the weight decay of the config. The peak of inverse_sqrt is 0.0088 times the rate that is listed
here.
"""


def get_sweep(sweep):
    optimizers = [
        ({"name": "adamw", "schedule": "inverse_sqrt"}, 0.12),
        ({"name": "nadamw", "schedule": "cosine"}, 1e-3),
        # A beta3 near 1 needs many more updates (Pagliardini et al. 2024, appendix C.1.5).
        (
            {"name": "ademamix", "schedule": "cosine", "beta3": 0.999, "alpha_warmup_steps": 800},
            1e-3,
        ),
        ({"name": "schedule_free_adamw", "schedule": "constant"}, 2.5e-3),
        ({"name": "muon", "schedule": "cosine"}, 3.5e-3),
    ]
    trials = [
        {f"optimizer.{key}": value for key, value in values.items()}
        | {"optimizer.learning_rate": least_rate * 2**i}
        for values, least_rate in optimizers
        for i in range(5)
    ]
    return sweep.listed(trials, objective="bleu", pruner=None)
