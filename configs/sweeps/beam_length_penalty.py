"""Beam size and length penalty (section 6.1), by decoding the validation split of one trained run.

Command:   python -m scripts.sweep --from=WORKDIR --sweep=configs/sweeps/beam_length_penalty.py
               --workdir=DIR
Hardware:  12 decodings of the validation split: 9 minutes for Multi30k on two CPU cores shared with
           other work.
"""


def get_sweep(sweep):
    trials = sweep.product(
        {"decoding.beam_size": [1, 2, 4, 8], "decoding.length_penalty": [0.0, 0.6, 1.0]}
    )
    return sweep.listed(trials, objective="bleu", pruner=None)
