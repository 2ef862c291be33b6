"""A translation with its score."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Translation:
    """A translation and its score. The translation of a source without tokens has empty fields and score 0.

    text: without line ends.
    tokens: the ids of the output; the last one is EOS.
    pieces: the string of each token: U+2581 begins a word, "</s>" is EOS.
    token_log_probabilities: of each token given the source and the tokens before it, in nats. A CTC search does not
      know them: they are 0, and that of EOS is `log_probability`.
    log_probability: the sum of these.
    score: log_probability / ((5 + length) / 6)^length_penalty, where length counts EOS.
    """

    text: str
    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]
    log_probability: float
    score: float


EMPTY = Translation("", (), (), (), 0.0, 0.0)
