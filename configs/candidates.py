"""Minimum risk training: the Multi30k model learns from rewards of its translations (Shen et
al. 2016). With --config.training.candidate_loss=contrastive
--config.training.likelihood_weight=0.05 --config.optimizer.learning_rate=1e-5 it learns from
preferences (CPO, Xu et al. 2024).

Command:   python -m transformer.train --config=configs/multi30k.py --workdir=runs/multi30k
           python -m scripts.average --workdir=runs/multi30k --checkpoint=last --average=10
               --output=runs/multi30k-mean
           python -m scripts.candidates --workdir=runs/multi30k-mean
               --output=runs/candidates-data --reward=chrf,bleu,constant,random
               --decoding.beam_size=8
           python -m transformer.train --config=configs/candidates.py --workdir=runs/candidates
           python -m transformer.evaluate --workdir=runs/candidates --checkpoint=last
               --average=10
Data:      the pairs of configs/multi30k.py, and candidates that the third command makes.
Hardware:  after the parent's run, 4 minutes on two CPU cores for the candidates, and 8 on one core
           for the training, of which 2 are compilation.
Expect:    on test2016 chrF as the parent's and 2 BLEU less, with longer outputs (three seeds;
           docs/sequence_training.md has other rewards and controls).
"""

import ml_collections

from configs import multi30k


def get_config() -> ml_collections.ConfigDict:
    config = multi30k.get_config()
    config.training.init_from = "runs/multi30k-mean"
    config.training.candidate_loss = "minimum_risk"
    config.training.risk_sharpness = 0.5  # with the paper's 0.005, all probabilities sink
    # validation BLEU 42.5; without it 35.8, at a third of the learning rate
    config.training.likelihood_weight = 0.01
    config.data.mixture = ("label=candidates path=runs/candidates-data rewards=chrf.rewards",)
    config.batch.plan = "groups"
    config.batch.row_multiple = 1  # sources, each with a row for each of 8 candidates
    config.batch.tokens = 4096  # 64 rows of the longest sentences

    config.optimizer.name = "adam"
    config.optimizer.weight_decay = 0.0
    config.optimizer.schedule = "constant"
    config.optimizer.learning_rate = 3e-5
    config.optimizer.warmup_steps = 50
    config.training.steps = 800
    config.training.r_drop = 0.0
    config.training.eval_every = 200
    return config
