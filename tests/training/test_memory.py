"""The shape of batches that needs most memory comes first, by the lengths that the model's stacks have."""

import pytest

from tests.training.tiny import setup, tiny_config
from transformer.data.batches.epoch_plan import Bucket
from transformer.training.memory import by_memory, bytes_used


def test_of_as_many_positions_the_longer_rows_need_more():
    shapes = [Bucket(8, 96, 96), Bucket(16, 48, 48), Bucket(48, 16, 16)]
    assert by_memory(tiny_config(), shapes[::-1]) == shapes


@pytest.mark.parametrize("objective", ["translation", "ctc"])
def test_the_first_shape_needs_most_memory_as_compiled(objective):
    """A translation model has its longer side in the decoder, which a model of CTC does not have."""
    config = tiny_config(training__objective=objective, training__label_smoothing=0.0)
    shapes = [Bucket(8, 8, 64), Bucket(8, 32, 16)]
    assert by_memory(config, shapes) == (shapes if objective == "translation" else shapes[::-1])
    here = setup(config)
    used = [
        bytes_used(compiled().memory_analysis())
        for compiled in here.step.compilations(here.initializer.abstract_state, shapes)[: len(shapes)]
    ]
    assert used[0] > used[1]
