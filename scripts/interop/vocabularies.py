"""The vocabularies of other toolkits: the token of each of their ids, and how text is segmented."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from scripts.interop import untrusted
from scripts.interop.portable import ABSENT
from transformer.data.tokenizers.byte_vocabulary import ByteVocabulary
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
PADDING = ("<pad>", "<blank>")  # CTranslate2's names of the padding token


class Side(NamedTuple):
    """The vocabulary of source or target, with the toolkit's ids.

    ids: the toolkit's id of each token, or ABSENT.
    size: the number of the toolkit's ids.
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
    """Reads the vocabularies of source and target.

    They have these names, or are all the vocabularies in the folder if `names` is None. A
    vocabulary is a SentencePiece model (.spm) or, as in OPUS-MT, a list of pieces: .yml, or text
    with one piece per line. source.spm and target.spm beside a list segment its texts. Raises
    UserError if a vocabulary is missing or damaged.
    """
    with untrusted.reading(folder):
        if names is None:
            candidates = sorted(folder.glob("*vocab*"))
            paths = [path for path in candidates if path.suffix in (".spm", ".yml")]

            # Without settings, only these names tell the source from the target.
            is_ordered = [path.name[:3] for path in paths] == ["src", "trg"]
        else:
            paths = [folder / Path(name).name for name in names]
            is_ordered = True
        segmenters = [folder / f"{side}.spm" for side in SIDES]
        models = [untrusted.read_bytes(path) if path.exists() else None for path in segmenters]
    if len(paths) != 1 and not (len(paths) == 2 and is_ordered):
        described = first_of([path.name for path in paths], 3, ", ") or "none"
        raise UserError(
            f"{folder}: has the vocabularies {described}; it must have one (*vocab*.spm or .yml), "
            "two that begin with src and trg, or a decoder.yml with vocabs: [SOURCE, TARGET]"
        )
    sides = []
    for path in paths:
        with untrusted.reading(path):
            if path.suffix == ".spm":
                sides.append(marian_side(SentencePieceVocabulary(untrusted.read_bytes(path))))
            else:
                sides.append(_read_list(path, models))
    return sides[0], sides[-1]


def marian_side(vocabulary: SentencePieceVocabulary) -> Side:
    """Returns the side of a SentencePiece model. Marian's ids are those of the model."""
    # A model has the id -1, which is ABSENT, for a special token that it lacks.
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.serialized)
    if processor.eos_id() == ABSENT:
        raise UserError("its SentencePiece model must have an end-of-sentence piece")
    special = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    return Side(vocabulary, [*special, *vocabulary.model_ids[SPECIAL:]], processor.vocab_size())


def engine_side(vocabulary: SentencePieceVocabulary) -> Side:
    """Returns the side of a vocabulary with end-of-sentence and unknown as the ids 0 and 1.

    Some engines expect these ids. Other special pieces become the last ones.
    """
    side = marian_side(vocabulary)
    pad, unk, bos, eos = side.ids[:SPECIAL]
    if (eos, unk) == (0, 1):
        return side
    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.serialized)
    last = [id_ for id_ in (bos, pad) if id_ != ABSENT]
    ordinary = [id_ for id_ in range(side.size) if id_ not in side.ids[:SPECIAL]]
    order = [eos, unk, *ordinary, *last]
    pieces = [model.pieces[id_] for id_ in order]
    del model.pieces[:]
    model.pieces.extend(pieces)
    model.trainer_spec.eos_id = 0
    model.trainer_spec.unk_id = 1
    model.trainer_spec.bos_id = ABSENT if bos == ABSENT else order.index(bos)
    model.trainer_spec.pad_id = ABSENT if pad == ABSENT else order.index(pad)
    return marian_side(SentencePieceVocabulary(model.SerializeToString()))


def _read_list(path: Path, models: Sequence[bytes | None]) -> Side:
    if path.suffix == ".yml":
        # With BaseLoader every scalar is a string, because `no` and `1` are pieces.
        content = untrusted.read_yaml(path, loader="BaseLoader")
        ids = {piece: int(id_) for piece, id_ in content.items()}
    else:
        lines = untrusted.read_text(path).removesuffix("\n").split("\n")
        ids = {piece: id_ for id_, piece in enumerate(lines)}
    pieces = pieces_by_id(ids)
    special = [ids.get(piece, ABSENT) for piece in SPECIAL_PIECES]
    if ABSENT in (special[UNK], special[EOS]):
        raise UserError(f"must have the pieces {SPECIAL_PIECES[UNK]} and {SPECIAL_PIECES[EOS]}")
    return piece_side(pieces, special, models)


def pieces_by_id(ids: Mapping[str, int]) -> list[str]:
    """Returns the pieces in the order of their ids. Raises UserError if the ids have gaps."""
    if any(type(id_) is not int for id_ in ids.values()) or {*ids.values()} != {*range(len(ids))}:
        raise UserError(
            f"the ids of its {len(ids)} pieces must be the integers 0 to {len(ids) - 1}"
        )
    return sorted(ids, key=ids.__getitem__)


def read_ctranslate2(
    folders: Sequence[Path], settings: dict[str, Any], rows: Sequence[int]
) -> tuple[Side, Side]:
    """Reads the vocabularies of source and target.

    The first folder has the lists of tokens. A SentencePiece model in any of the folders segments
    texts; without one, texts are pieces separated by spaces. Ids are rows of the embedding tables;
    `rows` is the number of rows of both tables. Raises UserError if a file is damaged, or a list is
    longer than its table.
    """
    # Argos packages have one model for both sides beside the folder with the lists.
    models = []
    for side in SIDES:
        names = (f"{side}.spm", "sentencepiece.model", "bpe.model")
        path = _first_file([folder / name for folder in folders for name in names])
        if path is not None and path.name == "bpe.model":
            raise UserError("has a bpe.model of subword-nmt, must have a SentencePiece model")
        models.append(path and untrusted.read_bytes(path))
    source, target = (
        _read_tokens(folders[0], side, count, settings, models)
        for side, count in zip(SIDES, rows, strict=True)
    )
    return source, target


def _first_file(paths: Sequence[Path]) -> Path | None:
    return next((path for path in paths if path.exists()), None)


def _read_tokens(
    folder: Path, side: str, rows: int, settings: dict[str, Any], models: Sequence[bytes | None]
) -> Side:
    """Reads a list of tokens. Later rows are <unk>, if the list lacks it, and padding."""
    names = [f"{name}_vocabulary{end}" for name in (side, "shared") for end in (".json", ".txt")]
    path = _first_file([folder / name for name in names]) or folder / names[0]
    unk = settings["unk_token"]
    start = settings["decoder_start_token"]
    with untrusted.reading(path):
        if path.suffix == ".json":
            tokens = untrusted.read_json(path, list)
        else:
            tokens = untrusted.read_text(path).removesuffix("\n").split("\n")
        if unk not in tokens:
            tokens.append(unk)
        if len(tokens) > rows:
            raise UserError(
                f"has {len(tokens)} tokens, must have at most the {rows} rows of the {side} table"
            )
        tokens += [f"<padding {row}>" for row in range(len(tokens), rows)]

        # The padding token must not be the token from which decoding starts.
        row_of = {token: row for row, token in enumerate(tokens)}
        pad = next(
            (row_of[token] for token in PADDING if token in row_of and token != start), ABSENT
        )
        special = [pad, row_of[unk], row_of[start], row_of[settings["eos_token"]]]
        return piece_side(tokens, special, models)


def piece_side(
    pieces: Sequence[str], special: Sequence[int], models: Sequence[bytes | None]
) -> Side:
    """Returns the side of pieces in the order of their ids.

    `special` has the ids of PAD, UNK, BOS and EOS.
    """
    ordinary = [id_ for id_ in range(len(pieces)) if id_ not in special]
    names = [*SPECIAL_PIECES]
    for id_ in ordinary:
        # An ordinary piece must not have the string of a special token.
        piece = pieces[id_]
        names.append(f"<{piece}>" if piece in SPECIAL_PIECES else piece)
    return Side(PieceVocabulary(names, models), [*special, *ordinary], len(pieces))


def make_tokenizer(source: Side, target: Side) -> Tokenizer:
    """Returns the tokenizer of both sides. Equal vocabularies are shared."""
    # Texts of the target side may have another segmentation, even with the same pieces.
    is_shared = source.vocabulary.serialized == target.vocabulary.serialized
    vocabulary = source.vocabulary if is_shared else target.vocabulary
    if isinstance(vocabulary, PieceVocabulary):
        vocabulary = vocabulary.target_view
    return Tokenizer(source.vocabulary, vocabulary)


def tokenizer_kind(vocabulary: Vocabulary) -> str:
    """Returns the value of `tokenizer.kind`."""
    if isinstance(vocabulary, PieceVocabulary):
        return "pieces"
    if isinstance(vocabulary, ByteVocabulary):
        return "byte"
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.serialized)
    scores = [processor.get_score(id_) for id_ in vocabulary.model_ids[SPECIAL:]]

    # The scores of BPE are ranks, those of the unigram model are log-probabilities.
    return "bpe" if all(score == round(score) for score in scores) else "unigram"


def write_segmenters(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes the SentencePiece models that segment texts of source and target, if there are any."""
    for index, vocabulary in enumerate(tokenizer.sides):
        model = None
        if isinstance(vocabulary, SentencePieceVocabulary):
            model = vocabulary.serialized
        elif isinstance(vocabulary, PieceVocabulary):
            model = vocabulary.models[index]
        if model is not None:
            files.write_bytes(folder / f"{SIDES[index]}.spm", model)
