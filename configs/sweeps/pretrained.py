"""Random parameters against those of a pre-trained encoder, three seeds each.

Command:   python -m scripts.sweep --config=configs/low_resource.py --sweep=configs/sweeps/pretrained.py \\
               --workdir=runs/pretrained, after runs/pretrain is made (docs/experiments.md)
"""


def get_sweep(sweep):
    trials = sweep.product({"training.init_from": ["", "runs/pretrain"]}, sweep.seeds(3))
    return sweep.listed(trials, objective="bleu", pruner=None)
