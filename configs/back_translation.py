"""Back-translation: 1,000 pairs of sentences, and more whose English a model has made of German text.

Command:   docs/corpora.md, from the pairs and the reverse model to this run
Hardware:
Expect:
"""

import ml_collections

from configs import quickstart


def get_config() -> ml_collections.ConfigDict:
    config = quickstart.get_config()
    config.model.dropout = 0.2  # each real pair is seen many times
    config.data.source = "text"
    config.data.path = "runs/back-translation/mixed"
    config.data.test_split = "test"
    config.training.steps = 400
    config.training.eval_every = 200
    return config
