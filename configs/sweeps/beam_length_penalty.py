"""How wide a beam, and how strong a length penalty (section 6.1)? Nothing is trained: one run is decoded anew.

Command:   python -m scripts.sweep --from=WORKDIR --sweep=configs/sweeps/beam_length_penalty.py --workdir=DIR
Hardware:  twelve times the validation split's decoding. With an early run of configs/multi30k.py: 9 minutes on two
           CPU cores shared with other work; BLEU 39.4 at beam 4 and alpha 1, 38.1 at beam 1, 36.6 at beam 8 and
           alpha 0.
"""

from scripts.sweeping.description import Sweep, listed, product


def get_sweep() -> Sweep:
    trials = product({"decoding.beam_size": [1, 2, 4, 8], "decoding.length_penalty": [0.0, 0.6, 1.0]})
    return listed(trials, objective="bleu", pruner=None)
