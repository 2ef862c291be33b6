"""Verses of the Bible: one model of five languages, or English-German with and without context.

Command:   python -m transformer.train --config=configs/verses.py:all --workdir=runs/verses
               --config.data.path=data/verses
           python -m scripts.directions --workdir=runs/verses --languages=en,de,fr,es,ru
               --checkpoint=last --average=10
Data:      data/verses has train, valid and test in each language, as docs/verses.md prepares them.
Hardware:  one CPU core in bfloat16: an hour for `all`, 29 minutes for `en-de` and `en-de-context`.
Expect:    BLEU on Acts, English to German: 20.7 for `en-de`, 20.0 for `en-de-context` and 11.3 for
           `all`, which reads each direction once (docs/verses.md).

`all` translates between all pairs of the languages; a tag names the target language. `en-de` is one
of these directions. `en-de-context` is the same model, which reads each verse with the verse before
it, and has as many updates of as many positions. The model is that of configs/multi30k.py.
"""

import itertools

import ml_collections

from configs import multi30k
from configs.rules import choose

LANGUAGES = ("en", "de", "fr", "es", "ru")


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = multi30k.get_config()
    config.data.name = "verses"
    config.data.downloads = ()
    config.data.test_split = "test"
    config.data.max_length = 128  # the mean verse has 34 tokens, and one in 100 more than 80
    config.batch.packed_length = 128
    config.batch.tokens = 3072
    config.model.dropout = 0.2
    config.training.r_drop = 0.0  # twice as many epochs in the same time
    config.training.eval_sentences = 500
    choose("variant", variant, VARIANTS)(config)
    return config


def all_directions(config: ml_collections.ConfigDict) -> None:
    directions = [
        f"label={source}-{target} source_language={source} target_language={target}"
        for source, target in itertools.permutations(LANGUAGES, 2)
    ]
    config.data.source_tag = ">>{target_language}<<"
    config.data.mixture = tuple(directions)
    # into English, and between two languages that are not English
    config.data.valid_sets = tuple(
        direction
        for direction in directions
        if direction.startswith(("label=de-en", "label=fr-ru"))
    )
    config.tokenizer.shared = True
    config.tokenizer.vocab_size = 8000
    config.model.share_embeddings = "all"
    config.training.steps = 7200  # an epoch of all directions
    config.training.eval_every = 1800
    config.checkpoint.best_metric = "bleu/mean"


def one_direction(config: ml_collections.ConfigDict) -> None:
    config.training.steps = 3200  # 11 epochs, or 5 in context
    config.training.eval_every = 800


def one_direction_in_context(config: ml_collections.ConfigDict) -> None:
    one_direction(config)
    config.data.context = 1
    config.data.max_length = 192  # of both verses
    config.batch.packed_length = 192


VARIANTS = {
    "all": all_directions,
    "en-de": one_direction,
    "en-de-context": one_direction_in_context,
}
