"""Marian's vocabularies: SentencePiece models (.spm) and lists of pieces (.yml), in and out."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece

from scripts.interop import untrusted
from scripts.interop.portable import foreign_ids
from transformer import files
from transformer.data.tokenizers import vocabulary
from transformer.data.tokenizers.vocabulary import PieceVocabulary, SentencePieceVocabulary, Vocabulary
from transformer.errors import UserError, first_of
from transformer.special_tokens import SPECIAL, SPECIAL_PIECES

ENDINGS = (".spm", ".yml")
SEGMENTERS = ("source.spm", "target.spm")  # segment the text for lists of pieces, in the folders of OPUS-MT
PADDING, UNKNOWN, START, END = SPECIAL_PIECES  # the names of the special pieces in lists


class Side(NamedTuple):
    """A vocabulary, Marian's id of each of its tokens, and the number of Marian's tokens."""

    vocabulary: Vocabulary
    ids: list[int]
    size: int


def in_folder(folder: Path) -> list[Path]:
    """Returns the vocabularies in a folder, by their names."""
    return sorted(path for path in folder.glob("*vocab*") if path.suffix in ENDINGS)


def read(folder: Path, names: Any) -> tuple[Side, Side]:
    """Reads the vocabularies of source and target: those with these names, or if there are none those in the folder.

    Raises UserError if they are missing or damaged.
    """
    with untrusted.reading(folder):
        paths = in_folder(folder) if names is None else [folder / Path(name).name for name in names]
    is_ordered = names is not None or [path.name[:3] for path in paths] == ["src", "trg"]
    if len(paths) != 1 and not (len(paths) == 2 and is_ordered):
        listed = first_of([path.name for path in paths], 3, ", ") or "none"
        raise UserError(
            f"{folder}: has the vocabularies {listed}; it must have one (*vocab*.spm or .yml), two that begin with src "
            "and trg, or a decoder.yml with vocabs: [SOURCE, TARGET]"
        )
    if missing := [path for path in paths if not path.is_file()]:
        raise UserError(f"{missing[0]}: no such file")
    segmenters = [folder / name for name in SEGMENTERS]
    with untrusted.reading(folder):
        models = [path.read_bytes() if path.exists() else None for path in segmenters]
        is_shared = paths[0].read_bytes() == paths[-1].read_bytes()
    source = _read_side(paths[0], models if is_shared else [models[0], None])
    target = source if is_shared else _read_side(paths[1], [None, models[1]])
    if isinstance(target.vocabulary, PieceVocabulary):
        target = target._replace(vocabulary=target.vocabulary.target_view)
    return source, target


def _read_side(path: Path, models: Sequence[bytes | None]) -> Side:
    with untrusted.reading(path):
        if path.suffix == ".yml":
            return _read_list(path, models)
        model = vocabulary.load(path.read_bytes(), str(path))
        if not isinstance(model, SentencePieceVocabulary):
            raise UserError("must be a SentencePiece model")
        return numbered(model)


def _read_list(path: Path, models: Sequence[bytes | None]) -> Side:
    loaded = untrusted.read_yaml(path, loader="BaseLoader")  # all are strings: `no` and `1` are pieces
    ids = {piece: int(id_) for piece, id_ in loaded.items()}
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError("must map pieces to the ids 0, 1, 2, ...")
    special = [ids.pop(piece, -1) for piece in SPECIAL_PIECES]
    pad, unk, bos, eos = special
    if min(unk, eos) < 0:
        raise UserError(f"must have the pieces {UNKNOWN} and {END}")
    pieces = sorted(ids, key=ids.__getitem__)
    order = foreign_ids(eos, unk, [ids[piece] for piece in pieces], pad, bos)
    return Side(PieceVocabulary([*SPECIAL_PIECES, *pieces], models), order, max(order) + 1)


def numbered(vocabulary: Vocabulary) -> Side:
    """Returns a vocabulary with the ids by which Marian knows its tokens. Raises UserError if Marian cannot read it."""
    if not isinstance(vocabulary, SentencePieceVocabulary):
        if isinstance(vocabulary, PieceVocabulary) and any(vocabulary.models):
            raise UserError("its lists of pieces have SentencePiece models of their own, which Marian cannot express")
        others = list(range(2, vocabulary.size - 2))
        return Side(
            vocabulary, foreign_ids(0, 1, others, *range(vocabulary.size - 2, vocabulary.size)), vocabulary.size
        )
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.serialized)
    if processor.eos_id() < 0:
        raise UserError("its SentencePiece model must have an end-of-sentence piece")
    others, pad, bos = vocabulary.model_ids[SPECIAL:], processor.pad_id(), processor.bos_id()
    return Side(
        vocabulary, foreign_ids(processor.eos_id(), processor.unk_id(), others, pad, bos), processor.vocab_size()
    )


def write(folder: Path, name: str, side: Side) -> str:
    """Writes a vocabulary into a folder, and returns the name of its file."""
    if isinstance(side.vocabulary, SentencePieceVocabulary):
        files.write_bytes(folder / f"{name}.spm", side.vocabulary.serialized)
        return f"{name}.spm"
    lines = [
        f"{json.dumps(piece)}: {id_}\n" for id_, piece in sorted(zip(side.ids, side.vocabulary.pieces, strict=True))
    ]
    files.write_bytes(folder / f"{name}.yml", "".join(lines).encode())
    return f"{name}.yml"


def kind(vocabulary: Vocabulary) -> str:
    """Returns the value of `tokenizer.kind`."""
    if isinstance(vocabulary, PieceVocabulary):
        return "pieces"
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.serialized)
    scores = [processor.get_score(id_) for id_ in vocabulary.model_ids[SPECIAL:]]
    return "bpe" if all(score == round(score) for score in scores) else "unigram"  # ranks or log-probabilities
