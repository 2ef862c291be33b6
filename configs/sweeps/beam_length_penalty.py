"""Beam size and length penalty (section 6.1), by decoding the validation split of one trained run.

Command:   python -m scripts.sweep --from=WORKDIR --sweep=configs/sweeps/beam_length_penalty.py --workdir=DIR
Hardware:  12 decodings of the validation split: 9 minutes for Multi30k on two CPU cores shared with other work.
Result:    with an early version of configs/multi30k.py, BLEU 39.4 at beam 4 and alpha 1, 38.1 at beam 1, 36.6 at
           beam 8 and alpha 0.
"""


def get_sweep(sweep):
    trials = sweep.product({"decoding.beam_size": [1, 2, 4, 8], "decoding.length_penalty": [0.0, 0.6, 1.0]})
    return sweep.listed(trials, objective="bleu", pruner=None)
