"""Table 3 in miniature: rows of configs/table3.py with an eighth of every width, on 5,000 pairs
of Multi30k (English-German).

Command:   python -m scripts.reproduce table3 --scale=mini --output=runs/table3-mini
           python -m transformer.train --config=configs/table3_mini.py:A_h1 --workdir=runs/A_h1
               trains one row.
Hardware:  1.7 hours on two CPU cores, with --jobs=2.

Layers, numbers of heads, dropout, label smoothing and form of the schedule are those of the paper;
d_model, d_ff, d_k and d_v are divided by 8, the vocabulary by 12. The optimizer is Muon, which
needs fewer epochs than Adam. Norms precede the sub-layers, because with post-norm six layers learn
more slowly than two in so few updates. Every row trains until two validations in a row have not
improved its BLEU, or for 12 epochs.
"""

import ml_collections

from configs import multi30k, table3

FACTOR = 8
# The rows that `scripts.reproduce` trains by default. Every row of configs/table3.py has a
# configuration here.
ROWS = ("base", "A_h1", "C_N2", "C_d256", "C_ff4096", "D_dropout0", "D_smoothing0", "E_learned")


def get_config(row: str = "") -> ml_collections.ConfigDict:
    config = table3.get_config(row)
    for width in ("d_model", "d_ff", "d_k", "d_v"):
        if config.model[width] is not None:
            config.model[width] //= FACTOR
    config.model.max_positions = 128
    # perplexity on 10,000 pairs after 1,000 updates, of N = 6 and 2: with post-norm 68 and 43
    config.model.norm_position = "pre"

    config.data = multi30k.get_config().data
    config.data.train_pairs = 5000
    config.data.max_length = 48
    config.tokenizer.vocab_size = 3000
    config.batch.tokens = 480
    config.batch.plan = "packed"  # one shape, which compiles in seconds
    config.batch.packed_length = 48
    config.batch.length_multiple = 1  # of validation
    config.batch.max_buckets = 2  # of validation

    config.optimizer.name = "muon"
    config.optimizer.learning_rate = 0.5
    config.optimizer.warmup_steps = 500
    config.training.steps = 3000  # 12 epochs, at most
    config.training.eval_every = 300
    config.training.patience = 2
    config.checkpoint.every = 300
    config.checkpoint.keep = 1
    config.decoding.max_source_length = 64
    return config
