"""Encoding of chunks of pairs: the hash that seeds the subword sampling of each sentence."""

import numpy as np

from transformer.data.corpus.encoding import mix


def test_one_value_is_hashed_as_in_the_reference_implementation():
    assert mix(0).tolist() == [0xE220A8397B1DCDAF]  # first output of SplitMix64 with seed 0


def test_arrays_are_hashed_elementwise_and_the_order_of_values_matters():
    many = mix(3, np.arange(1000))
    assert many[7] == mix(3, 7)[0] != mix(7, 3)[0]
    assert len(set(many.tolist())) == 1000
