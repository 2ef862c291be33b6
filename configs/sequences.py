"""Sequences of integers: a small model sorts the notes of melodies (docs/sequences.md).

Command:   python -m transformer.train --config=configs/sequences.py --workdir=runs/sequences
Data:      runs/melodies, which a few lines in docs/sequences.md make.
Hardware:  90 seconds on two busy CPU cores.
Expect:    98 % of the test melodies without a mistake.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
    config = base.get_config()
    config.model.num_layers = 2
    config.model.d_model = 64
    config.model.d_ff = 128
    config.model.num_heads = 4
    config.model.dropout = 0.0
    config.model.dtype = "float32"

    config.data.source = "ids"
    config.data.name = "melodies"
    config.data.path = "runs/melodies"
    config.data.source_language = "melody"  # the ending of the files
    config.data.target_language = "sorted"
    config.data.valid_split = "valid"
    config.tokenizer.kind = "ids"
    config.tokenizer.vocab_size = 100  # more than the largest integer + 4
    config.batch.tokens = 2048
    config.batch.length_multiple = 1
    config.batch.max_buckets = 2

    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 0.004
    config.optimizer.warmup_steps = 100
    config.training.steps = 600
    config.training.eval_every = 200
    config.checkpoint.every = 200
    config.data.max_length = 64
    return config
