"""The quickstart with one attention head, to compare attention functions by the head's width
(section 3.2.1).

Command:   python -m scripts.sweep --config=configs/attention_scores.py
               --sweep=configs/sweeps/attention_scores.py --workdir=runs/attention-scores --jobs=2
Hardware:  a quarter of an hour on two CPU cores for all 36 runs.
Expect:    the negative log-likelihoods in docs/paper.md.
"""

import ml_collections

from configs import quickstart


def get_config() -> ml_collections.ConfigDict:
    config = quickstart.get_config()
    config.model.norm_position, config.model.positions = "post", "sinusoidal"
    config.tokenizer.vocab_size = 400
    # additive attention keeps d_k numbers for each head and pair of positions
    config.model.num_heads = 1
    config.data.max_length = 64
    config.batch.tokens = 512  # a step of additive attention with d_k = 512 takes 0.6 s on one core
    config.batch.max_buckets = 2  # shapes to compile for each of the 36 runs
    config.training.steps = config.training.eval_every = 300
    config.checkpoint.every = 150
    config.training.eval_bleu = False
    config.checkpoint.best_metric = "loss"
    return config
