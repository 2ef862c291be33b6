"""Translations: the tokens of a text, and the texts and scores of the hypotheses of a search."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer.data.tokenizers.vocabulary import TaggedVocabulary, Vocabulary
from transformer.decoding.beam_search import Hypotheses
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS


@dataclass(frozen=True)
class Translation:
    """A translation and its score.

    The translation of a source without tokens has empty fields and score 0.

    text: without line ends.
    tokens: the ids of the output; the last one is EOS.
    pieces: the string of each token: U+2581 begins a word, "</s>" is EOS.
    token_log_probabilities: of each token given the source and the tokens before it, in nats. A CTC
      search does not know them: EOS has `log_probability`, and the other tokens 0.
    log_probability: the sum of token_log_probabilities.
    score: log_probability / the length penalty, such as ((5 + length) / 6)^length_penalty, where
      length counts EOS. The coverage penalty is added, if there is one. The score of a sentence of
      a document includes the sentences before it.
    score_kind: "log_probability", or the name of another score: see `mbr` and `reranking`.
    """

    text: str
    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]
    log_probability: float
    score: float
    score_kind: str = "log_probability"


EMPTY = Translation("", (), (), (), 0.0, 0.0)
Translations = list[list[Translation]]  # of each source, best first


def encode(vocabulary: Vocabulary | TaggedVocabulary, name: str, text: str) -> list[int]:
    """Returns the tokens of a text, and EOS.

    Raises UserError, with the text's name, if it cannot be encoded.
    """
    try:
        return [*vocabulary.encode([text])[0], EOS]
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def read_hypotheses(hypotheses: Hypotheses, vocabulary: Vocabulary) -> list[Translation]:
    """Returns the translations of one sentence, at least one, in the order of its hypotheses.

    The hypotheses are in NumPy, without the axis of sentences. Empty slots have no translation.
    """
    # The tokens of each hypothesis up to its first EOS.
    finite = np.flatnonzero(np.isfinite(hypotheses.scores))
    outputs = []
    for row in hypotheses.tokens[finite]:
        end = np.argmax(row == EOS)
        outputs.append(row[: end + 1].tolist())

    # All texts are decoded together.
    translations = []
    for n, tokens, text in zip(finite, outputs, vocabulary.decode(outputs), strict=True):
        log_p = tuple(hypotheses.token_log_probabilities[n, : len(tokens)].tolist())
        translation = Translation(
            text=" ".join(text.splitlines()),
            tokens=tuple(tokens),
            pieces=pieces_of(vocabulary, tokens),
            token_log_probabilities=log_p,
            log_probability=sum(log_p),
            score=float(hypotheses.scores[n]),
        )
        translations.append(translation)
    return translations or [EMPTY]


def pieces_of(vocabulary: Vocabulary, tokens: Sequence[int]) -> tuple[str, ...]:
    """Returns the string of each token."""
    return tuple(vocabulary.pieces[token] for token in tokens)


def different_texts(translations: list[Translation]) -> list[Translation]:
    """Returns the first translation with each text; several token sequences may have the same."""
    first = {}
    for translation in translations:
        first.setdefault(translation.text, translation)
    return list(first.values())
