"""Random initialization against a pre-trained encoder and span corruption, three seeds each.

docs/training.md has the commands that make the parents runs/pretrain and runs/spans.
Command:   python -m scripts.sweep --config=configs/low_resource.py
               --sweep=configs/sweeps/pretrained.py --workdir=runs/pretrained
"""

# Span corruption needs one vocabulary for both languages.
ONE_VOCABULARY = {
    "tokenizer.shared": [True],
    "tokenizer.vocab_size": [9000],
    "model.share_embeddings": ["all"],
}


def get_sweep(sweep):
    two = sweep.product({"training.init_from": ["", "runs/pretrain"]}, sweep.seeds(3))
    one = sweep.product({"training.init_from": ["", "runs/spans"]} | ONE_VOCABULARY, sweep.seeds(3))
    return sweep.listed([*two, *one], objective="bleu", pruner=None)
