"""Kinds of models, each a difference from the model of configs/multi30k.py, with two seeds.

Command:   python -m scripts.sweep --config=configs/multi30k.py --sweep=configs/sweeps/kinds.py
               --workdir=runs/kinds --config.training.r_drop=0 --config.batch.tokens=3072
               --config.training.steps=800 --jobs=2
Hardware:  two hours on two CPU cores in bfloat16.
Expect:    greedy BLEU on validation from 34.0 (sinusoidal positions) to 36.2 (no difference);
           docs/log.md has all.

That model has rotary positions, pre-norm, layer normalization, ReLU, 4 heads, and 4 + 2 layers with
self-attention.
"""


def get_sweep(sweep):
    positions = [
        {"model.positions": kind} for kind in ("sinusoidal", "learned", "shaw", "t5", "alibi")
    ]
    norms = [
        {"model.norm": "rms_norm"},
        {"model.norm_position": "post"},
        {"model.norm_position": "sandwich"},
    ]
    decoders = [{"model.decoder_self_attention": kind} for kind in ("average", "ssru")]
    others = [
        {"model.num_key_heads": 1},
        # as many parameters: its networks have three matrices
        {"model.activation": "swiglu", "model.d_ff": 176},
        {"model.num_layers": 6, "model.num_decoder_layers": 1},
    ]
    trials = sweep.product([{}, *positions, *norms, *decoders, *others], sweep.seeds(2))
    return sweep.listed(trials, objective="bleu", pruner=None)
