"""The vocabularies of other toolkits: which of their ids is which token, and how text is segmented."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece

from scripts.interop import untrusted
from scripts.interop.portable import ABSENT
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import (
    PieceVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
)
from transformer.support import files
from transformer.support.errors import UserError, first_of
from transformer.support.special_tokens import EOS, SPECIAL, SPECIAL_PIECES, UNK

SIDES = ("source", "target")
PADDING = ("<pad>", "<blank>")  # CTranslate2's names of it


class Side(NamedTuple):
    """A vocabulary, the toolkit's id of each of its tokens, or ABSENT, and the number of the
    toolkit's ids.
    """

    vocabulary: Vocabulary
    ids: list[int]
    size: int

    @property
    def tokens(self) -> list[int]:
        """The token of each of the toolkit's ids, or ABSENT."""
        token_of = {id_: token for token, id_ in enumerate(self.ids)}
        return [token_of.get(id_, ABSENT) for id_ in range(self.size)]


def read_marian(folder: Path, names: Any) -> tuple[Side, Side]:
    """Reads the vocabularies of source and target: those with these names, or if there are none
    those in the folder.

    Each is a SentencePiece model (.spm), or a list of pieces (.yml, or text with one a line), which
    the models beside it segment, as in OPUS-MT. Raises UserError if they are missing or damaged.
    """
    with untrusted.reading(folder):
        found = sorted(path for path in folder.glob("*vocab*") if path.suffix in (".spm", ".yml"))
        paths = found if names is None else [folder / Path(name).name for name in names]
        segmenters = [folder / f"{side}.spm" for side in SIDES]
        models = [untrusted.read_bytes(path) if path.exists() else None for path in segmenters]
    is_ordered = names is not None or [path.name[:3] for path in paths] == ["src", "trg"]
    if len(paths) != 1 and not (len(paths) == 2 and is_ordered):
        listed = first_of([path.name for path in paths], 3, ", ") or "none"
        raise UserError(
            f"{folder}: has the vocabularies {listed}; it must have one (*vocab*.spm or .yml), two that begin with src "
            "and trg, or a decoder.yml with vocabs: [SOURCE, TARGET]"
        )
    sides = []
    for path in paths:
        with untrusted.reading(path):
            if path.suffix == ".spm":
                sides.append(marian_side(SentencePieceVocabulary(untrusted.read_bytes(path))))
            else:
                sides.append(_read_list(path, models))
    return pair(sides[0], sides[-1])


def marian_side(vocabulary: SentencePieceVocabulary) -> Side:
    """Returns a SentencePiece model with the ids by which Marian knows its tokens, which are the
    model's.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.serialized)
    if processor.eos_id() == ABSENT:
        raise UserError("its SentencePiece model must have an end-of-sentence piece")
    special = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    return Side(vocabulary, [*special, *vocabulary.model_ids[SPECIAL:]], processor.vocab_size())


def _read_list(path: Path, models: Sequence[bytes | None]) -> Side:
    if path.suffix == ".yml":
        # all are strings: `no` and `1` are pieces
        loaded = untrusted.read_yaml(path, loader="BaseLoader")
        ids = {piece: int(id_) for piece, id_ in loaded.items()}
    else:
        lines = untrusted.read_text(path).removesuffix("\n").split("\n")
        ids = {piece: id_ for id_, piece in enumerate(lines)}
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError("must map pieces to the ids 0, 1, 2, ...")
    special = [ids.get(piece, ABSENT) for piece in SPECIAL_PIECES]
    if ABSENT in (special[UNK], special[EOS]):
        raise UserError(f"must have the pieces {SPECIAL_PIECES[UNK]} and {SPECIAL_PIECES[EOS]}")
    return piece_side(sorted(ids, key=ids.__getitem__), special, models)


def read_ctranslate2(
    folders: Sequence[Path], settings: dict[str, Any], rows: Sequence[int]
) -> tuple[Side, Side]:
    """Reads the vocabularies of source and target, segmented by the SentencePiece models in the
    folders, or by spaces.

    The ids are rows of tables, which have so many `rows`. The first folder has the lists of tokens.
    Raises UserError if these are damaged, or longer than a table.
    """
    models = []
    for side in SIDES:
        paths = [
            folder / name
            for folder in folders
            for name in (f"{side}.spm", "sentencepiece.model", "bpe.model")
        ]
        path = next((path for path in paths if path.exists()), None)
        if path is not None and path.name == "bpe.model":
            raise UserError("has a bpe.model of subword-nmt, must have a SentencePiece model")
        models.append(path and untrusted.read_bytes(path))
    return pair(
        *(
            _read_tokens(folders[0], *side, settings, models)
            for side in zip(SIDES, rows, strict=True)
        )
    )


def _read_tokens(
    folder: Path, side: str, rows: int, settings: dict[str, Any], models: Sequence[bytes | None]
) -> Side:
    """Reads a file of tokens. The rows after them are <unk>, if the file lacks it, and padding."""
    paths = [
        folder / f"{name}_vocabulary{end}" for name in (side, "shared") for end in (".json", ".txt")
    ]
    path = next((path for path in paths if path.exists()), paths[0])
    with untrusted.reading(path):
        tokens = (
            untrusted.read_json(path, list)
            if path.suffix == ".json"
            else untrusted.read_text(path).split("\n")
        )
        tokens = tokens[:-1] if path.suffix == ".txt" and tokens[-1] == "" else tokens
        tokens += [] if settings["unk_token"] in tokens else [settings["unk_token"]]
        if len(tokens) > rows:
            raise UserError(
                f"has {len(tokens)} tokens, must have at most the {rows} rows of the {side} table"
            )
        tokens += [f"<padding {row}>" for row in range(len(tokens), rows)]
        row_of = {token: row for row, token in enumerate(tokens)}
        start = settings["decoder_start_token"]
        pad = next((token for token in PADDING if token in row_of and token != start), None)
        special = [row_of[token] for token in (settings["unk_token"], start, settings["eos_token"])]
        return piece_side(tokens, [row_of.get(pad, ABSENT), *special], models)


def piece_side(
    pieces: Sequence[str], special: Sequence[int], models: Sequence[bytes | None]
) -> Side:
    """Returns the vocabulary of pieces in the order of their ids.

    `special` has the ids of PAD, UNK, BOS and EOS.
    """
    ordinary = [id_ for id_ in range(len(pieces)) if id_ not in special]
    # An ordinary piece with the string of a special one gets another.
    named = [
        f"<{pieces[id_]}>" if pieces[id_] in SPECIAL_PIECES else pieces[id_] for id_ in ordinary
    ]
    return Side(
        PieceVocabulary([*SPECIAL_PIECES, *named], models), [*special, *ordinary], len(pieces)
    )


def pair(source: Side, target: Side) -> tuple[Side, Side]:
    """Returns both sides as a tokenizer has them: equal vocabularies are shared."""
    is_shared = source.vocabulary.serialized == target.vocabulary.serialized
    vocabulary = source.vocabulary if is_shared else target.vocabulary
    view = vocabulary.target_view if isinstance(vocabulary, PieceVocabulary) else vocabulary
    return source, target._replace(vocabulary=view)


def kind(vocabulary: Vocabulary) -> str:
    """Returns the value of `tokenizer.kind`."""
    if isinstance(vocabulary, PieceVocabulary):
        return "pieces"
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.serialized)
    scores = [processor.get_score(id_) for id_ in vocabulary.model_ids[SPECIAL:]]
    # ranks or log-probabilities
    return "bpe" if all(score == round(score) for score in scores) else "unigram"


def write_segmenters(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes the SentencePiece models that segment the texts of source and target, if there are
    any.
    """
    for index, vocabulary in enumerate(tokenizer.sides):
        model = vocabulary.serialized if isinstance(vocabulary, SentencePieceVocabulary) else None
        if isinstance(vocabulary, PieceVocabulary):
            model = vocabulary.models[index]
        if model is not None:
            files.write_bytes(folder / f"{SIDES[index]}.spm", model)
