"""Non-autoregressive translation of the quickstart's sentences by CTC: an encoder predicts all
target tokens at once.

Command:   python -m transformer.train --config=configs/ctc.py --workdir=runs/ctc
Hardware:  half an hour on two busy CPU cores.
Expect:    97 BLEU on unseen sentences.
"""

import ml_collections

from configs import quickstart


def get_config() -> ml_collections.ConfigDict:
    config = quickstart.get_config()
    config.model.norm_position, config.model.positions = "post", "sinusoidal"
    config.tokenizer.vocab_size = 400
    config.training.objective = "ctc"
    config.decoding.strategy = "ctc"
    config.decoding.beam_size = 4
    config.training.label_smoothing = 0.0
    config.model.num_layers = 4  # as many as the quickstart's encoder and decoder together
    config.model.ctc_frames = 3
    config.training.eval_every, config.checkpoint.every = 300, 150
    # frames are predicted independently, which takes longer to learn than a decoder
    config.training.steps = 2400
    return config
