"""Table 3 in miniature: the rows of configs/table3.py with an eighth of every width, on Multi30k (English-German).

Command:   python -m scripts.reproduce table3 --scale=mini --data=FOLDER --output=runs/table3-mini
           python -m transformer.train --config=configs/table3_mini.py:A_h4 --workdir=runs/A_h4 trains one row.
Hardware:  two and a half hours for all rows on two CPU cores, with --jobs=2.

Layers, numbers of heads, dropout and label smoothing are those of the paper; d_model, d_ff, d_k and d_v are divided by
8, the vocabulary by 9. For runs of minutes the optimizer is Muon with a cosine schedule, and a batch has 512 positions.
The big model trains for as many steps as the other rows; the paper's trains three times as long.
"""

import ml_collections

from configs import multi30k, table3

FACTOR = 8


def get_config(row: str = "") -> ml_collections.ConfigDict:
    config = table3.get_config(row)
    for width in ("d_model", "d_ff", "d_k", "d_v"):
        if config.model[width] is not None:
            config.model[width] //= FACTOR
    config.model.max_positions = 128
    config.model.dtype = "float32"

    config.data = multi30k.get_config().data
    config.tokenizer.vocab_size = 4000
    config.batch.tokens = 512
    config.batch.plan = "packed"  # one shape, which compiles in seconds
    config.batch.packed_length = 64
    config.batch.length_multiple = 1  # of validation
    config.batch.max_buckets = 2  # of validation

    config.optimizer.name = "muon"
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 0.003  # validation perplexity of the base row 42; at 0.0015 52, at 0.01 74
    config.optimizer.warmup_steps = 100
    config.training.steps = 2000  # 1.9 epochs
    config.training.eval_every = 2000
    config.checkpoint.every = 200
    config.decoding.max_source_length = 64
    return config
