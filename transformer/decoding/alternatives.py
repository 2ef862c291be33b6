"""Alternatives at a position: the best translations that begin with a prefix and each of the likeliest next tokens."""

import functools
import math

from transformer.decoding.batches import Replicas
from transformer.decoding.beam_tree import search_steps
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import EMPTY, Translation
from transformer.errors import UserError
from transformer.special_tokens import EOS


def alternatives(decoder: TextDecoder, parameters: Replicas, text: str, prefix: str, count: int) -> list[Translation]:
    """Returns a translation for each of the `count` likeliest tokens after the prefix, the likeliest token first.

    Raises UserError if the beam search does not consider so many tokens, or no output has the prefix.
    """
    if count > (most := 2 * decoder.config.beam_size):
        raise UserError(f"count={count}: must be at most {most}, twice decoding.beam_size; raise that")
    (source,) = decoder.source_tokens([text], first_line=1)
    if not source:
        return [EMPTY]
    tokens = decoder.control.encode_text("prefix", prefix)
    arrays_of = functools.partial(decoder.arrays, sources=[source], first_line=1)
    arrays_of = decoder.control.with_texts(arrays_of, {"prefix": [tokens]}, [source], first_line=1)
    step = [array[len(tokens)].tolist() for array in search_steps(decoder, parameters, source, arrays_of)]
    _, _, (end_log_p, *_), _, following, log_p = step
    following = sorted([(end_log_p, EOS), *zip(log_p, following, strict=True)], key=lambda pair: -pair[0])
    prefixes = [[*tokens, token] for value, token in following[:count] if math.isfinite(value)]
    found = decoder.translate(parameters, [text] * len(prefixes), constraints={"prefix": prefixes})
    return [best for (best,) in found]
