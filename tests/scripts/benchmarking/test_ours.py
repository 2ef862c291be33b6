"""Our systems of a comparison: what they count is what they do."""

import numpy as np
import pytest

from scripts.benchmarking import ours, tasks
from scripts.benchmarking.tasks import SIZES, Size, random_sentences
from transformer.support.special_tokens import BOS, EOS, PAD

TINY = Size(num_layers=1, d_model=8, d_ff=16, num_heads=2, vocab_size=40, pairs=5, length=10)


@pytest.mark.slow
def test_a_training_step_counts_the_targets_that_the_loss_counts():
    task = tasks.training_task(TINY) | {"dtype": "float32"}
    prepared = ours.prepare_training(task)
    assert (
        prepared.tokens == sum(map(len, task["target"])) == float(prepared.repeat()["sums"].tokens)
    )


def test_a_batch_is_shifted_and_padded():
    batch = ours.make_batch({"source": [[7, EOS]], "target": [[8, 9, EOS], [6, EOS]], "bos": BOS})
    np.testing.assert_array_equal(batch["source"], [[7, EOS]])
    np.testing.assert_array_equal(batch["target_input"], [[BOS, 8, 9], [BOS, 6, PAD]])
    np.testing.assert_array_equal(batch["target_output"], [[8, 9, EOS], [6, EOS, PAD]])


@pytest.mark.parametrize("size", SIZES.values())
def test_the_lengths_of_a_batch_share_a_bucket_and_fill_it(size):
    task = tasks.training_task(size)
    for side in ("source", "target"):
        lengths = [len(row) for row in task[side]]
        assert len(lengths) == size.pairs
        assert max(lengths) == size.length
        assert size.length - tasks.LENGTHS < min(lengths) < size.length


def test_sentences_have_ordinary_tokens_and_one_end():
    (sentence,) = random_sentences(0, [2000], vocab_size=9)
    assert set(sentence[:-1]) == {4, 5, 6, 7}  # neither special tokens nor the last one
    assert sentence[-1] == EOS


@pytest.mark.first_case
@pytest.mark.parametrize(("sentences", "shortlist"), [(3, 0), (1, 0), (3, 2)])
def test_every_output_has_the_forced_number_of_tokens(sentences, shortlist):
    task = tasks.decoding_task(TINY, sentences, tokens=6) | {
        "dtype": "float32",
        "shortlist": shortlist,
    }
    prepared = ours.prepare_decoding(task)
    assert prepared.repeat() == [6] * sentences
    assert prepared.tokens == 6 * sentences
