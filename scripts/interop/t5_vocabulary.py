"""The vocabulary of T5's family: SentencePiece or bytes, sentinels, and rows without a piece.

T5 starts decoding with its padding token, which is BOS here. PAD here, which never has an
influence, is the last row of T5's table that has no piece. So the tables here have T5's rows in
another order.
"""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

from scripts.interop import untrusted
from scripts.interop.hugging_face_folder import Folder
from scripts.interop.hugging_face_names import CONFIG
from scripts.interop.portable import ABSENT, Settings
from scripts.interop.vocabularies import Side
from transformer.data.corpus.spans import SENTINEL
from transformer.data.tokenizers.byte_vocabulary import NUM_BYTES, ByteVocabulary
from transformer.data.tokenizers.vocabulary import SentencePieceVocabulary, Vocabulary
from transformer.support import files
from transformer.support.errors import UserError, first_of
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL, SPECIAL_PIECES, UNK

SENTENCEPIECE = "spiece.model"
TOKENIZER_JSON = "tokenizer.json"  # Transformers 5 writes only this file
EXTRA_IDS = 100  # sentinels, unless tokenizer_config.json has a number
BYTE_EXTRA_IDS = 125  # the same for ByT5
BYTE_SPECIAL = (0, 1, 2)  # padding, end-of-sentence and unknown in ByT5, before the bytes
BYTE = re.compile("<0x[0-9A-F]{2}>")
ROW = re.compile("<row ([0-9]+)>")  # the piece of a row without one
PIECE = ModelProto.SentencePiece
MAX_ROWS = 1 << 22  # of a table; mT5's has 250,112
# Steps of a tokenizer.json that SentencePiece takes too: its rules, and the removal of spaces.
NORMALIZERS = ("Precompiled", "Sequence", "Strip", "Replace")


def read(folder: Folder, settings: Settings, start: Any) -> Side:
    """Reads the vocabulary. `start` is the id from which decoding starts.

    Raises UserError if a file is missing or damaged, or if the ids do not fit the table.
    """
    # The numbers are checked before anything of their size is made.
    for name, value in (
        ("vocab_size", settings["vocab_size"]),
        ("extra_ids", folder.texts.get("extra_ids", 0)),
    ):
        if value not in range(MAX_ROWS + 1):
            raise UserError(f"{folder.path}: {name}={value}: must be a number up to {MAX_ROWS:,}")
    kind = folder.texts.get("tokenizer_class", settings.get("tokenizer_class", ""))
    if kind.startswith("ByT5"):
        with untrusted.reading(folder.path / CONFIG):
            return _read_bytes(folder.texts, settings, start)
    path = folder.path / SENTENCEPIECE
    if not path.exists() and (folder.path / TOKENIZER_JSON).exists():
        path = folder.path / TOKENIZER_JSON
    with untrusted.reading(path):
        if path.suffix == ".json":
            model, added = _from_json(untrusted.read_json(path))
        else:
            model = ModelProto.FromString(untrusted.read_bytes(path))
            others = path.with_name("added_tokens.json")
            tokens = untrusted.read_json(others) if others.exists() else {}
            added = _added_tokens(folder.texts, tokens, model)
        size = settings["vocab_size"]
        needed = max([len(model.pieces), *(id_ + 1 for id_ in added)])
        if needed > size:
            raise UserError(
                f"has {len(model.pieces)} pieces and {len(added)} extra ids, which need {needed} "
                f"rows, but {CONFIG} has vocab_size={size}"
            )
        spare = size - 1 if size > needed else ABSENT
        special = _special_ids(model, settings, start, spare)
        _complete(model, added, special, size)
        vocabulary = SentencePieceVocabulary(model.SerializeToString())
    return Side(vocabulary, [*special, *vocabulary.model_ids[SPECIAL:]], size)


def _read_bytes(texts: Settings, settings: Settings, start: Any) -> Side:
    """Returns the vocabulary of ByT5, whose tokenizer has no file."""
    pad, eos, unk = BYTE_SPECIAL
    for name, id_, needed in (
        ("pad_token_id", settings["pad_token_id"], pad),
        ("eos_token_id", settings["eos_token_id"], eos),
        ("decoder_start_token_id", start, pad),
    ):
        if id_ != needed:
            raise UserError(f"{name}={id_}: must be {needed}, as ByT5Tokenizer has it")
    size = settings["vocab_size"]
    first = len(BYTE_SPECIAL) + NUM_BYTES  # the row after the bytes
    # Transformers writes "extra_ids": 0 beside a list of all tokens.
    listed = _listed_tokens(texts) or {}
    added = {id_: text for id_, text in listed.items() if id_ >= first}
    if not added:
        count = texts.get("extra_ids", BYTE_EXTRA_IDS)
        added = {first + i: text for i, text in enumerate(_sentinels(count))}
    needed = max(added, default=first - 1) + 1
    if needed > size:
        raise UserError(
            f"bytes and {len(added)} extra ids need {needed} rows, but it has vocab_size={size}"
        )
    is_spare = size > needed
    rows = [added.get(id_, f"<row {id_}>") for id_ in range(first, size - is_spare)]
    vocabulary = ByteVocabulary(rows)
    special = [size - 1 if is_spare else ABSENT, unk, pad, eos]
    return Side(vocabulary, [*special, *range(len(BYTE_SPECIAL), size - is_spare)], size)


def _sentinels(count: int) -> list[str]:
    return [f"<extra_id_{i}>" for i in range(count)]


def _from_json(content: Settings) -> tuple[ModelProto, dict[int, str]]:
    """Returns the SentencePiece model of a tokenizer.json, and its added tokens by id."""
    unigram = content["model"]
    if unigram["type"] != "Unigram":
        raise UserError(f"model.type={unigram['type']}: must be Unigram")
    model = ModelProto()
    model.trainer_spec.model_type = TrainerSpec.UNIGRAM
    model.trainer_spec.byte_fallback = unigram.get("byte_fallback", False)
    for piece, score in unigram["vocab"]:
        is_byte = model.trainer_spec.byte_fallback and BYTE.fullmatch(piece)
        kind = PIECE.BYTE if is_byte else PIECE.NORMAL
        model.pieces.add(piece=piece, score=score, type=kind)
    model.pieces[unigram["unk_id"]].type = PIECE.UNKNOWN

    for part in _flatten(content.get("normalizer")):
        if part["type"] not in NORMALIZERS:
            raise UserError(f"normalizer={part['type']}: must be {', '.join(NORMALIZERS)}")
        # The unigram model itself makes one space of several.
        if part["type"] == "Replace" and part["pattern"] != {"Regex": " {2,}"}:
            raise UserError(f"normalizer: replaces {part['pattern']}, must replace spaces only")
        if "precompiled_charsmap" in part:
            rules = base64.b64decode(part["precompiled_charsmap"])
            model.normalizer_spec.precompiled_charsmap = rules
    return model, {token["id"]: token["content"] for token in content["added_tokens"]}


def _flatten(normalizer: Any) -> Iterator[Settings]:
    """Yields the steps of a normalizer, which may be a sequence of others."""
    if normalizer and normalizer["type"] == "Sequence":
        for part in normalizer["normalizers"]:
            yield from _flatten(part)
    elif normalizer:
        yield normalizer


def _listed_tokens(texts: Settings) -> dict[int, str] | None:
    """Returns the added tokens of tokenizer_config.json by id, or None if it has no list."""
    tokens = texts.get("added_tokens_decoder")
    if tokens is None:
        return None
    return {int(id_): token["content"] for id_, token in tokens.items()}


def _added_tokens(texts: Settings, others: Settings, model: ModelProto) -> dict[int, str]:
    """Returns the tokens beside a SentencePiece model, by id.

    `others` is the content of added_tokens.json, in which older versions of Transformers wrote
    those beside the sentinels. The last id of the sentinels is <extra_id_0>.
    """
    listed = _listed_tokens(texts)
    if listed is not None:
        return listed
    # The model of mT5 has sentinels.
    has_sentinels = any(SENTINEL.fullmatch(piece.piece) for piece in model.pieces)
    count = texts.get("extra_ids", 0 if has_sentinels else EXTRA_IDS)
    first = len(model.pieces)
    sentinels = {first + i: f"<extra_id_{count - 1 - i}>" for i in range(count)}
    return sentinels | {id_: token for token, id_ in others.items()}


def _special_ids(model: ModelProto, settings: Settings, start: Any, spare: int) -> list[int]:
    """Returns the ids of PAD, UNK, BOS and EOS. `spare` is the id of a row without a piece."""
    pieces = [piece.piece for piece in model.pieces]
    eos = settings["eos_token_id"]
    pad = settings["pad_token_id"]
    for name, id_ in {"pad_token_id": pad, "decoder_start_token_id": start}.items():
        if id_ not in range(len(pieces)):
            raise UserError(f"{name}={id_}: must be the id of one of {len(pieces)} pieces")
    if start == eos:
        raise UserError(f"decoder_start_token_id={start}: must be another token than eos_token_id")
    if pieces.index(SPECIAL_PIECES[EOS]) != eos:
        raise UserError(f"eos_token_id={eos}: must be the id of {SPECIAL_PIECES[EOS]}")
    unk = next(id_ for id_, piece in enumerate(model.pieces) if piece.type == PIECE.UNKNOWN)
    return [spare if start == pad else pad, unk, start, eos]


def _complete(model: ModelProto, added: dict[int, str], special: list[int], num_rows: int) -> None:
    """Adds pieces to the model, so that each row of the table but the special ones is a token."""
    scores = [piece.score for piece in model.pieces if piece.type == PIECE.NORMAL]
    for id_ in range(num_rows):
        if id_ == len(model.pieces):
            model.pieces.add(piece=f"<row {id_}>", score=min(scores))
        piece = model.pieces[id_]
        if id_ == special[UNK]:
            continue
        if id_ in special:
            piece.type = PIECE.CONTROL
            continue
        if id_ in added:
            # As in Transformers, the space before an added token is not a token.
            piece.piece = "\u2581" + added[id_].removeprefix("\u2581")
            piece.type = PIECE.USER_DEFINED
        elif piece.type in (PIECE.CONTROL, PIECE.UNKNOWN, PIECE.UNUSED):
            piece.type = PIECE.NORMAL
            piece.score = min(scores)
        if piece.piece in SPECIAL_PIECES:
            piece.piece = f"<{piece.piece}>"


def rows_of(vocabulary: Vocabulary, has_padding_row: bool) -> list[int]:
    """Returns the token of each row of T5's table."""
    ordinary = range(SPECIAL, vocabulary.size)
    return [BOS, EOS, UNK, *ordinary, *([PAD] if has_padding_row else [])]


def write(vocabulary: Vocabulary, folder: Path) -> Settings:
    """Writes the SentencePiece model of the rows, and returns the settings of the tokenizer."""
    if isinstance(vocabulary, ByteVocabulary):
        symbols = [symbol for symbol in vocabulary.symbols if not ROW.fullmatch(symbol)]
        if symbols != _sentinels(len(symbols)):
            raise UserError(
                "tokenizer.user_symbols and tags: ByT5Tokenizer has no symbols but "
                f"<extra_id_0> and so on, and the vocabulary has {first_of(symbols, 3, ', ')}"
            )
        return {"tokenizer_class": "ByT5Tokenizer", "extra_ids": len(symbols)}
    model = ModelProto.FromString(vocabulary.serialized)
    kinds = {PAD: PIECE.CONTROL, EOS: PIECE.CONTROL, UNK: PIECE.UNKNOWN}
    pieces = [
        PIECE(piece=SPECIAL_PIECES[token], score=0.0, type=kind) for token, kind in kinds.items()
    ]
    pieces += [model.pieces[id_] for id_ in vocabulary.model_ids[SPECIAL:]]
    while ROW.fullmatch(pieces[-1].piece):
        pieces.pop()
    extra_ids = 0
    while pieces[-1].piece == f"\u2581<extra_id_{extra_ids}>":
        pieces.pop()
        extra_ids += 1

    written = ModelProto()
    written.CopyFrom(model)
    del written.pieces[:]
    written.pieces.extend(pieces)
    spec = written.trainer_spec
    spec.pad_id = 0
    spec.eos_id = 1
    spec.unk_id = 2
    spec.bos_id = ABSENT
    files.write_bytes(folder / SENTENCEPIECE, written.SerializeToString())
    return {"tokenizer_class": "T5Tokenizer", "extra_ids": extra_ids}
