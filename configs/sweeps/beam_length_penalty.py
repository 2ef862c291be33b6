"""How wide a beam, and how strong a length penalty (section 6.1)? Nothing is trained: one run is decoded anew.

Command:   python -m scripts.sweep --from=WORKDIR --sweep=configs/sweeps/beam_length_penalty.py --workdir=DIR
Hardware:  twelve times the validation split's decoding.
"""

from scripts.sweeping.description import Sweep, listed, product


def get_sweep() -> Sweep:
    trials = product({"decoding.beam_size": [1, 2, 4, 8], "decoding.length_penalty": [0.0, 0.6, 1.0]})
    return listed(trials, objective="bleu", pruner=None)
