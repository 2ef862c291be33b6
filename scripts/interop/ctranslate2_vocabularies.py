"""The vocabularies of CTranslate2's models: which row of a table is which of our tokens."""

from pathlib import Path
from typing import Any

import numpy as np

from scripts.interop import untrusted
from scripts.interop.ctranslate2_variables import SIDES
from scripts.interop.portable import ABSENT, foreign_ids
from transformer.data.tokenizers import vocabulary
from transformer.data.tokenizers.piece_vocabulary import PieceVocabulary
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import SentencePieceVocabulary
from transformer.decoding.shortlist import Shortlist
from transformer.errors import UserError
from transformer.special_tokens import SPECIAL, SPECIAL_PIECES

PADDING = ("<pad>", "<blank>")
MAX_TRANSLATIONS = 64  # of a source token in a shortlist


class Side:
    """The vocabulary of one language.

    tokens: CTranslate2's, in the order of the rows: the file, <unk> if that lacks it, and names of padding.
    ids: the row of each of our tokens, or ABSENT.
    """

    def __init__(self, folder: Path, side: str, settings: dict[str, Any], rows: int) -> None:
        """Raises UserError if a table of so many rows is too small."""
        paths = [folder / f"{name}_vocabulary{end}" for name in (side, "shared") for end in (".json", ".txt")]
        path = next((path for path in paths if path.exists()), paths[0])
        tokens = untrusted.read_json(path, list) if path.suffix == ".json" else untrusted.read_text(path).split("\n")
        if not all(isinstance(token, str) for token in tokens):
            raise UserError(f"{path}: damaged (a token is not a string)")
        tokens = tokens[:-1] if path.suffix == ".txt" and tokens[-1] == "" else tokens
        tokens += [] if settings["unk_token"] in tokens else [settings["unk_token"]]
        if len(tokens) > rows:
            raise UserError(f"{path}: has {len(tokens)} tokens, must have at most the {rows} rows of the {side} table")
        self.tokens = [*tokens, *(f"<padding {row}>" for row in range(len(tokens), rows))]
        row_of = {token: row for row, token in enumerate(self.tokens)}
        start = settings["decoder_start_token"]
        pad = next((token for token in PADDING if token in row_of and token != start), None)
        special = [row_of.get(token, ABSENT) for token in (settings["eos_token"], settings["unk_token"], pad, start)]
        others = [row for row in range(rows) if row not in special]
        self.ids = foreign_ids(*special[:2], others, *special[2:])

    @property
    def pieces(self) -> list[str]:
        """The strings of our tokens. An ordinary token with the string of a special one gets another."""
        ordinary = [self.tokens[row] for row in self.ids[SPECIAL:]]
        return [*SPECIAL_PIECES, *(f"<{token}>" if token in SPECIAL_PIECES else token for token in ordinary)]

    @property
    def token_of(self) -> dict[str, int]:
        """Our token of each of CTranslate2's."""
        return {self.tokens[row]: token for token, row in enumerate(self.ids) if row != ABSENT}


def read_tokenizer(folders: tuple[Path, ...], sides: list[Side]) -> Tokenizer:
    """Returns the vocabularies, segmented by the SentencePiece models in the folders, or by spaces."""
    source, target = (side.pieces for side in sides)
    models = [_read_segmenter(folders, side) for side in SIDES.values()]
    if [model and model.pieces for model in models] == [source, target]:
        is_one = models[0].serialized == models[1].serialized
        return Tokenizer(models[0], models[0] if is_one else models[1])
    contents = [model and model.serialized for model in models]
    vocabulary_of_source = PieceVocabulary(source, contents)
    vocabulary_of_target = vocabulary_of_source if source == target else PieceVocabulary(target, contents)
    return Tokenizer(vocabulary_of_source, vocabulary_of_target.target_view)


def _read_segmenter(folders: tuple[Path, ...], side: str) -> SentencePieceVocabulary | None:
    paths = [folder / name for folder in folders for name in (f"{side}.spm", "sentencepiece.model")]
    path = next((path for path in paths if path.exists()), None)
    if path is None and any((folder / "bpe.model").exists() for folder in folders):
        raise UserError("has a bpe.model of subword-nmt, must have a SentencePiece model")
    return path and vocabulary.load(path.read_bytes(), str(path))


def read_shortlist(path: Path, sides: list[Side], tokenizer: Tokenizer) -> Shortlist | None:
    """Reads vmap.txt, except the candidates of sequences of several tokens; None without one."""
    if not path.exists():
        return None
    sources, targets = (side.token_of for side in sides)
    candidates = {}
    for line in untrusted.read_text(path).split("\n"):
        source, tab, words = line.partition("\t")
        if tab:
            candidates[source] = [targets[word] for word in words.split(" ") if word in targets]
    translations = np.full((tokenizer.source.size, MAX_TRANSLATIONS), -1, np.int32)
    for source in candidates.keys() & sources.keys():
        likeliest = candidates[source][:MAX_TRANSLATIONS]
        translations[sources[source], : len(likeliest)] = likeliest
    frequent = np.array(candidates.get("", []), np.int32)
    return Shortlist(translations, frequent, tokenizer.target.size, tokenizer.is_shared)
