"""Additive attention, and dot-product attention with and without scaling, by the head's width d_k
(section 3.2.1).

Command:   python -m scripts.sweep --config=configs/attention_scores.py
               --sweep=configs/sweeps/attention_scores.py --workdir=runs/attention-scores
"""


def get_sweep(sweep):
    scores = ["dot_product", "dot_product_unscaled", "additive"]
    trials = sweep.product(
        {"model.d_k": [4, 32, 128, 512], "model.attention": scores}, sweep.seeds(3)
    )
    return sweep.listed(trials, objective="nll", pruner=None)
