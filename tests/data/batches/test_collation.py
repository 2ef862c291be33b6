"""The arrays of a batch: tokens where the plan puts them, padding everywhere else."""

import numpy as np

from tests.data.sentences import MemorySentences, random_sentences
from transformer.data.batches import packing
from transformer.data.batches.collation import assemble_batch, ragged_arange
from transformer.data.batches.epoch_plan import Bucket, PlannedBatch

SENTENCES = MemorySentences([([11, 12], [21]), ([], [22, 23, 24]), ([13], [])])


def test_ragged_arange():
    assert ragged_arange(np.array([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]


def test_arrays_of_a_batch():
    arrays = assemble_batch(
        SENTENCES, PlannedBatch(Bucket(3, 4, 5), np.array([2, 0]), np.array([0, 1]))
    )
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "source": [[13, 3, 0, 0], [11, 12, 3, 0], [0, 0, 0, 0]],
        "target_input": [[2, 0, 0, 0, 0], [2, 21, 0, 0, 0], [0, 0, 0, 0, 0]],
        "target_output": [[3, 0, 0, 0, 0], [21, 3, 0, 0, 0], [0, 0, 0, 0, 0]],
    }
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int32)}


def test_arrays_of_a_packed_batch():
    batch = PlannedBatch(Bucket(3, 6, 7, is_packed=True), np.array([2, 0, 1]), np.array([0, 0, 1]))
    none = {6: [0] * 6, 7: [0] * 7}
    assert {name: array.tolist() for name, array in assemble_batch(SENTENCES, batch).items()} == {
        "source": [[13, 3, 11, 12, 3, 0], [3, 0, 0, 0, 0, 0], none[6]],
        "source_segments": [[1, 1, 2, 2, 2, 0], [1, 0, 0, 0, 0, 0], none[6]],
        "source_positions": [[0, 1, 0, 1, 2, 0], none[6], none[6]],
        "target_input": [[2, 2, 21, 0, 0, 0, 0], [2, 22, 23, 24, 0, 0, 0], none[7]],
        "target_output": [[3, 21, 3, 0, 0, 0, 0], [22, 23, 24, 3, 0, 0, 0], none[7]],
        "target_segments": [[1, 2, 2, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0], none[7]],
        "target_positions": [[0, 0, 1, 0, 0, 0, 0], [0, 1, 2, 3, 0, 0, 0], none[7]],
    }


def test_segments_of_a_planned_batch_are_whole_sentences():
    sentences = random_sentences(200, longest=12)
    plan = packing.plan_epoch(
        sentences.lengths, (Bucket(4, 32, 32, is_packed=True),), np.random.default_rng(0)
    )
    pairs = []
    for number in range(len(plan)):
        arrays = assemble_batch(sentences, plan[number])
        for row in range(4):
            for segment in range(1, arrays["source_segments"][row].max() + 1):
                source = arrays["source"][row][arrays["source_segments"][row] == segment]
                target = arrays["target_output"][row][arrays["target_segments"][row] == segment]
                assert source[-1] == target[-1] == 3
                pairs.append((source[:-1].tolist(), target[:-1].tolist()))
    assert sorted(pairs) == sorted(
        (source.tolist(), target.tolist()) for source, target in sentences.pairs
    )
