"""Random initialization against a pre-trained encoder, three seeds each.

The encoder is that of runs/pretrain; docs/training.md has the commands that make it.
Command:   python -m scripts.sweep --config=configs/low_resource.py
               --sweep=configs/sweeps/pretrained.py --workdir=runs/pretrained
"""


def get_sweep(sweep):
    trials = sweep.product({"training.init_from": ["", "runs/pretrain"]}, sweep.seeds(3))
    return sweep.listed(trials, objective="bleu", pruner=None)
