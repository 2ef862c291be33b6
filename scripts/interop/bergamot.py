"""Models of Bergamot and Firefox Translations, in: Marian's binary format, with int8 matrices and a shortlist."""

import contextlib
import dataclasses
import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from scripts.interop import marian, marian_vocabularies, untrusted
from scripts.interop.marian_vocabularies import Side
from scripts.interop.portable import ABSENT, PortableModel
from scripts.interop.untrusted import Cursor
from transformer.decoding.shortlist import Shortlist
from transformer.errors import UserError
from transformer.special_tokens import SPECIAL

VERSION = 1
FLOAT32, BYTES, INT8 = 0x404, 0x101, 0x4101  # of INT8 the data are the values times a factor, and then the factor
SHORTLIST_MAGIC = 0xF11A48D5013417F5
LONGEST = 1000  # translations of a token in a shortlist
NOT_TRANSPOSED = ("Wemb",)  # of the int8 matrices


def recognises(path: Path) -> bool:
    """Tells whether this is a model of Marian's binary format, or its folder."""
    return any(map(_has_version, _models_in(path)))


def read(path: Path) -> PortableModel:
    """Reads a .bin file, or the only one in a folder, also compressed by gzip. Raises UserError if that is impossible.

    The shortlist becomes part of the search, as in the engines that read these files.
    """
    models = [model for model in _models_in(path) if _has_version(model)]
    if len(models) != 1:
        raise UserError(f"{path}: has {len(models)} models in Marian's binary format; name the file of one")
    with _decompressed(models[0]) as file:
        model = marian.assemble(file, read_arrays(file))
        shortlists = sorted(file.parent.glob("lex*.bin"))
        if not shortlists:
            return model
        source, target = map(marian_vocabularies.numbered, model.tokenizer.sides)
        shortlist = read_shortlist(shortlists[0], source, target, model.tokenizer.is_shared)
    config = model.config | {"decoding.shortlist": shortlist.translations.shape[1]}
    return dataclasses.replace(model, config=config, shortlist=shortlist)


def _models_in(path: Path) -> list[Path]:
    paths = [*path.glob("*.bin"), *path.glob("*.bin.gz")] if path.is_dir() else [path]
    return sorted(path for path in paths if path.name.endswith((".bin", ".bin.gz")) and not path.name.startswith("lex"))


def _open(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _has_version(path: Path) -> bool:
    try:
        with _open(path) as file:
            return file.read(8) == VERSION.to_bytes(8, "little")
    except (OSError, EOFError):
        return False


@contextlib.contextmanager
def _decompressed(model: Path) -> Iterator[Path]:
    """Gives the model in a folder whose files are not compressed."""
    if model.suffix != ".gz":
        yield model
        return
    with tempfile.TemporaryDirectory() as name:
        for path in sorted(model.parent.iterdir()):
            if path.suffix in (".gz", ".yml", ".spm"):
                with untrusted.reading(path), _open(path) as file:
                    content = file.read(limit := max(untrusted.MAX_TEXT, untrusted.MAX_INFLATION * path.stat().st_size))
                    if len(content) == limit:
                        raise UserError(f"damaged (more than {limit:,} bytes, compressed)")
                (Path(name) / path.name.removesuffix(".gz")).write_bytes(content)
        try:
            yield Path(name) / model.stem
        except UserError as error:
            raise UserError(str(error).replace(name, str(model.parent))) from None


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a file in Marian's binary format, int8 ones as float32.

    It skips the factors by which engines quantize the other operands of products.
    """
    cursor = Cursor(path)
    if (version := cursor.unsigned(8)) != VERSION:
        raise UserError(f"{path}: has version {version} of Marian's binary format, must be {VERSION}")
    heads = [[cursor.unsigned(8) for _ in range(4)] for _ in range(cursor.unsigned(8))]
    names = [cursor.name(size) for size, *_ in heads]
    shapes = [tuple(map(int, cursor.array("<i4", [rank]))) for _, _, rank, _ in heads]
    cursor.take(cursor.unsigned(8))  # alignment
    arrays = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, heads, strict=True):
        end = cursor.position + size
        if name.endswith("_QuantMultA"):
            pass
        elif kind == FLOAT32:
            arrays[name] = cursor.array("<f4", shape)
        elif kind == BYTES:
            arrays[name] = cursor.array("i1", shape)
        elif kind == INT8 and len(shape) == 2:
            values = cursor.array("i1", shape if name in NOT_TRANSPOSED else shape[::-1])
            with np.errstate(all="ignore"):  # an infinite or NaN value is an error below
                values = values / cursor.array("<f4", [1])
            arrays[name] = values if name in NOT_TRANSPOSED else values.T
        else:
            raise UserError(f"{path}: {name} has the type {kind:#x}, must be float32 ({FLOAT32:#x}) or int8 ({INT8:#x})")
        cursor.take(end - cursor.position)
    untrusted.check_finite(path, arrays)
    return arrays


def read_shortlist(path: Path, source: Side, target: Side, is_shared: bool) -> Shortlist:
    """Reads a lexical shortlist, whose translations of a token have no order."""
    cursor = Cursor(path)
    if (magic := cursor.unsigned(8)) != SHORTLIST_MAGIC:
        raise UserError(f"{path}: begins with {magic:#x}, must begin with {SHORTLIST_MAGIC:#x}, as shortlists do")
    _checksum, frequent, _most, words, size = (cursor.unsigned(8) for _ in range(5))
    offsets, ids = cursor.array("<u8", [words]).astype(np.int64), cursor.array("<u4", [size]).astype(np.int64)
    counts = np.diff(offsets)
    if len(counts) != source.size or frequent > target.size or ids.max(initial=0) >= target.size:
        raise UserError(f"{path}: is for other vocabularies ({len(counts)} source tokens, must be {source.size})")
    if offsets[0] != 0 or offsets[-1] != size or counts.min() < 0 or counts.max() > LONGEST:
        raise UserError(f"{path}: damaged (its offsets must ascend to {size} by at most {LONGEST})")
    tokens = np.full(target.size, ABSENT)
    tokens[[id_ for id_ in target.ids if id_ != ABSENT]] = [token for token, id_ in enumerate(target.ids) if id_ != ABSENT]
    table = np.full((source.size + 1, counts.max()), -1, np.int32)  # its last row is that of absent source tokens
    rows = np.repeat(np.arange(source.size), counts)
    table[rows, np.arange(size) - offsets[rows]] = tokens[ids]
    likeliest = tokens[:frequent]
    return Shortlist(table[source.ids], likeliest[likeliest >= SPECIAL].astype(np.int32), len(target.ids), is_shared)
