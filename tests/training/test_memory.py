"""The shape of batches that needs most memory comes first, by the lengths that the model's stacks
have.
"""

import pytest

from tests.training.tiny import setup, tiny_config
from transformer.data.batches.epoch_plan import Bucket
from transformer.training.memory import bytes_used, sort_by_memory

LONG_TARGET, LONG_SOURCE = Bucket(8, 8, 64), Bucket(8, 32, 16)
CTC = tiny_config(training__objective="ctc", training__label_smoothing=0.0)


def test_of_as_many_positions_the_longer_rows_need_more():
    shapes = [Bucket(8, 96, 96), Bucket(16, 48, 48), Bucket(48, 16, 16)]
    assert sort_by_memory(tiny_config(), shapes[::-1]) == shapes


def test_a_model_of_ctc_has_no_decoder():
    """A translation model has its longer side in the decoder."""
    assert sort_by_memory(tiny_config(), [LONG_SOURCE, LONG_TARGET]) == [LONG_TARGET, LONG_SOURCE]
    assert sort_by_memory(CTC, [LONG_TARGET, LONG_SOURCE]) == [LONG_SOURCE, LONG_TARGET]


@pytest.mark.slow
@pytest.mark.parametrize("config", [tiny_config(), CTC])
def test_the_first_shape_needs_most_memory_as_compiled(config):
    here = setup(config)
    compilations = here.step.compilations(
        here.initializer.abstract_state, [LONG_SOURCE, LONG_TARGET]
    )
    first, second = (bytes_used(compiled().memory_analysis()) for compiled in compilations[:2])
    assert first > second
