"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in JAX and Flax NNX.

    model = transformer.load("runs/multi30k")
    translations = model.translate(["A man rides a horse."], n_best=4)
    print(translations[0][0].text)

`help(transformer.load)` explains the rest. One legend everywhere: B batch, S source length, T
target length, D model width, H heads, V vocabulary.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformer.support.errors import UserError

if TYPE_CHECKING:
    from transformer.api import Model

__all__ = ["UserError", "__version__", "load"]
__version__ = "0.2.0"


def load(
    workdir: str | os.PathLike | Sequence[str | os.PathLike],
    checkpoint: str | int = "best",
    average: int = 1,
    **decoding: bool | int | float | str,
) -> "Model":
    """Returns the trained model of a run.

    It translates, scores, and shows its attention and encoder states. Its methods are `translate`,
    `confidence`, `alternatives`, `score`, `attention`, `beam_tree`, `encode`, `num_tokens`,
    `knows`, `with_decoding`, `with_languages` and `compile`; `help(model)` describes them. Each
    local device holds a copy of the parameters.

    Args:
      workdir: the run's folder. A list of folders makes an ensemble, which averages the models'
          probabilities.
      checkpoint: "best", "last" or a step.
      average: the number of checkpoints to average: the newest at or before `checkpoint`.
      **decoding: values of keys of the group `decoding` that replace the run's, such as beam_size=8
        or length_penalty=1.0. configs/base.py explains each. batch_tokens=1 makes single sentences
        fast: batches have one row.

    Raises:
      UserError: a folder is not a run's, a checkpoint is missing or damaged, the tokenizers of an
        ensemble differ, or a key or its value is not allowed. The message names the remedy.
    """
    # JAX takes seconds to import, and every command imports this package.
    from transformer import api

    return api.load(workdir, checkpoint, average, decoding)
