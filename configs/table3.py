"""Table 3 of the paper: variations of the base model on WMT14 English-German, a configuration for
each row.

Data:      python -m scripts.get_data --tfds=wmt14_translate/de-en --output=data/tfds
Command:   python -m transformer.train --config=configs/table3.py:A_h4 --workdir=runs/A_h4
               --config.data.path=data/tfds
           python -m scripts.reproduce table3 --scale=paper --config.data.path=data/tfds trains all
               rows.
Hardware:  the paper used 8 P100 GPUs, for 12 hours a base model and 3.5 days the big one.
Expect:    perplexity per word piece and BLEU on newstest2013 with beam 4, alpha 0.6 and no
           averaging of checkpoints, and millions of parameters where Table 3 prints them:

           base            4.92  25.8   65     C_d256          5.75  24.5   28
           A_h1            5.29  24.9          C_d1024         4.66  26.0  168
           A_h4            5.00  25.5          C_ff1024        5.12  25.4   53
           A_h16           4.91  25.8          C_ff4096        4.75  26.2   90
           A_h32           5.01  25.4          D_dropout0      5.77  24.6
           B_dk16          5.16  25.1   58     D_dropout0.2    4.95  25.5
           B_dk32          5.01  25.4   60     D_smoothing0    4.67  25.3
           C_N2            6.11  23.7   36     D_smoothing0.2  5.47  25.7
           C_N4            5.19  25.3   50     E_learned       4.92  25.7
           C_N8            4.88  25.5   80     big             4.33  26.4  213

The printed counts fit a vocabulary of 41,000 (big: 36,000) within 2 %; the 37,000 of section 5.1
gives 63.0 and 214.2.
"""

from typing import Any, NamedTuple

import ml_collections

from configs import base
from configs.rules import choose


class Row(NamedTuple):
    """Changes from the base model, and the paper's figures: perplexity, BLEU and millions of
    parameters.
    """

    changes: dict[str, Any]
    perplexity: float
    bleu: float
    millions: int | None


BIG = {"model.d_model": 1024, "model.d_ff": 4096, "model.num_heads": 16, "model.dropout": 0.3}
ROWS = {
    "base": Row({}, 4.92, 25.8, 65),
    "A_h1": Row({"model.num_heads": 1, "model.d_k": 512, "model.d_v": 512}, 5.29, 24.9, None),
    "A_h4": Row({"model.num_heads": 4, "model.d_k": 128, "model.d_v": 128}, 5.00, 25.5, None),
    "A_h16": Row({"model.num_heads": 16, "model.d_k": 32, "model.d_v": 32}, 4.91, 25.8, None),
    "A_h32": Row({"model.num_heads": 32, "model.d_k": 16, "model.d_v": 16}, 5.01, 25.4, None),
    "B_dk16": Row({"model.d_k": 16}, 5.16, 25.1, 58),
    "B_dk32": Row({"model.d_k": 32}, 5.01, 25.4, 60),
    "C_N2": Row({"model.num_layers": 2}, 6.11, 23.7, 36),
    "C_N4": Row({"model.num_layers": 4}, 5.19, 25.3, 50),
    "C_N8": Row({"model.num_layers": 8}, 4.88, 25.5, 80),
    "C_d256": Row({"model.d_model": 256, "model.d_k": 32, "model.d_v": 32}, 5.75, 24.5, 28),
    "C_d1024": Row({"model.d_model": 1024, "model.d_k": 128, "model.d_v": 128}, 4.66, 26.0, 168),
    "C_ff1024": Row({"model.d_ff": 1024}, 5.12, 25.4, 53),
    "C_ff4096": Row({"model.d_ff": 4096}, 4.75, 26.2, 90),
    "D_dropout0": Row({"model.dropout": 0.0}, 5.77, 24.6, None),
    "D_dropout0.2": Row({"model.dropout": 0.2}, 4.95, 25.5, None),
    "D_smoothing0": Row({"training.label_smoothing": 0.0}, 4.67, 25.3, None),
    "D_smoothing0.2": Row({"training.label_smoothing": 0.2}, 5.47, 25.7, None),
    "E_learned": Row({"model.positions": "learned"}, 4.92, 25.7, None),
    "big": Row(BIG | {"training.steps": 300_000}, 4.33, 26.4, 213),
}


def get_config(row: str = "") -> ml_collections.ConfigDict:
    changes = choose("row", row, ROWS).changes
    config = base.get_config()
    config.update_from_flattened_dict(changes)
    # validation is the paper's measurement
    config.training.eval_beam_size = config.decoding.beam_size
    return config
