"""The tiny decoder of test_text_decoder.py, with controls."""

import functools

from tests.decoding import test_text_decoder
from transformer.decoding.control.controlled_decoder import ControlledDecoder

make_decoder = functools.partial(test_text_decoder.make_decoder, kind=ControlledDecoder)
