"""Multi30k from English to German and back with one model: a tag at the start of a source names the
other language.

Command:   python -m transformer.train --config=configs/multi30k_both.py --workdir=runs/both
           python -m scripts.directions --workdir=runs/both --languages=en,de --checkpoint=last
               --average=10
Hardware:  an hour on two CPU cores in bfloat16.
Expect:    41.1 BLEU en-de and 44.7 de-en, lower-cased and tokenized, on test2016
           (docs/mixtures.md).

It takes as many steps as a model of configs/multi30k.py for each direction, and has one vocabulary
for both languages.
"""

import ml_collections

from configs import multi30k

BACK = "label=de-en source_language=de target_language=en"


def get_config() -> ml_collections.ConfigDict:
    config = multi30k.get_config()
    config.data.source_tag = ">>{target_language}<<"
    config.data.mixture = ("label=en-de", BACK)
    config.data.valid_sets = (BACK,)
    config.tokenizer.shared = True
    config.tokenizer.vocab_size = 9000
    config.model.share_embeddings = "all"
    config.training.steps *= 2
    config.training.eval_every *= 2
    config.checkpoint.best_metric = "bleu/mean"
    return config
