"""Import of models of Bergamot and Firefox Translations: Marian's binary format, int8 matrices and
a shortlist.
"""

from pathlib import Path

import numpy as np

from scripts.interop import marian, untrusted, vocabularies
from scripts.interop.portable import ABSENT, Arrays, PortableModel
from scripts.interop.vocabularies import Side
from transformer.decoding.shortlist import Shortlist
from transformer.support.errors import UserError
from transformer.support.special_tokens import SPECIAL

VERSION = 1
DTYPES = {0x404: "<f4", 0x101: "i1"}
INT8 = 0x4101  # the data are the values times a factor, and then the factor
SHORTLIST_MAGIC = 0xF11A48D5013417F5
LONGEST = 1000  # translations of a token in a shortlist
EMBEDDINGS = "Wemb"  # in the names of the int8 matrices that are not transposed
# The search of Firefox's engine, which reads no file of settings.
SEARCH = marian.SEARCH_DEFAULTS | {"beam-size": 1, "normalize": 1.0, "max-length-factor": 2.0}


def read(path: Path) -> PortableModel:
    """Reads a .bin file, or the only one in a folder, with its shortlist.

    Raises UserError if that is impossible.
    """
    file = marian.only_model(path, models_in(path))
    model = marian.assemble(file, read_arrays(file), SEARCH)
    shortlists = sorted(file.parent.glob("lex*.bin"))
    if not shortlists:
        return model
    source, target = map(vocabularies.marian_side, model.tokenizer.sides)
    shortlist = read_shortlist(shortlists[0], source, target, model.tokenizer.is_shared)
    config = model.config | {"decoding.shortlist": shortlist.translations.shape[1]}
    return model._replace(config=config, shortlist=shortlist)


def models_in(path: Path) -> list[Path]:
    paths = sorted(path.glob("*.bin")) if path.is_dir() else [path]
    return [path for path in paths if path.suffix == ".bin" and _has_version(path)]


def _has_version(path: Path) -> bool:
    with untrusted.reading(path), untrusted.check_file(path).open("rb") as file:
        return file.read(8) == VERSION.to_bytes(8, "little")


def read_arrays(path: Path) -> Arrays:
    """Reads the arrays of a file in Marian's binary format, int8 ones as float32, without factors
    of activations.
    """
    arrays = {}
    with untrusted.reading(path):
        file = untrusted.Cursor(path)
        file.take(8)  # the version
        heads = [[file.unsigned(8) for _ in range(4)] for _ in range(file.unsigned(8))]
        names = [file.name(size) for size, *_ in heads]
        shapes = [tuple(map(int, file.array("<i4", [rank]))) for _, _, rank, _ in heads]
        file.take(file.unsigned(8))  # alignment
        for name, shape, (_, kind, _, size) in zip(names, shapes, heads, strict=True):
            end = file.position + size
            if kind == INT8:
                is_transposed = EMBEDDINGS not in name
                values = file.array("i1", shape[::-1] if is_transposed else shape)
                with np.errstate(all="ignore"):  # an infinite or NaN value is an error below
                    values = values / file.array("<f4", [1])
                arrays[name] = values.T if is_transposed else values
            elif not name.endswith("_QuantMultA"):
                arrays[name] = file.array(DTYPES[kind], shape)
            file.take(end - file.position)
        untrusted.check_finite(path, arrays)
    return arrays


def read_shortlist(path: Path, source: Side, target: Side, is_shared: bool) -> Shortlist:
    """Reads a lexical shortlist, whose translations of a token have no order."""
    with untrusted.reading(path):
        file = untrusted.Cursor(path)
        if (magic := file.unsigned(8)) != SHORTLIST_MAGIC:
            raise UserError(
                f"begins with {magic:#x}, must begin with {SHORTLIST_MAGIC:#x}, as shortlists do"
            )
        _checksum, frequent, _most, words, size = (file.unsigned(8) for _ in range(5))
        offsets = file.array("<u8", [words]).astype(np.int64)
        ids = file.array("<u4", [size]).astype(np.int64)
    counts = np.diff(offsets)
    if len(counts) != source.size or frequent > target.size or ids.max(initial=0) >= target.size:
        raise UserError(
            f"{path}: is for other vocabularies ({len(counts)} source tokens, must be {source.size})"
        )
    if offsets[0] != 0 or offsets[-1] != size or counts.min() < 0 or counts.max() > LONGEST:
        raise UserError(f"{path}: damaged (its offsets must ascend to {size} by at most {LONGEST})")
    tokens = np.array(target.tokens)
    # its last row is that of absent source tokens
    table = np.full((source.size + 1, counts.max()), ABSENT, np.int32)
    rows = np.repeat(np.arange(source.size), counts)
    table[rows, np.arange(size) - offsets[rows]] = tokens[ids]
    likeliest = tokens[:frequent]
    return Shortlist(
        table[source.ids],
        likeliest[likeliest >= SPECIAL].astype(np.int32),
        len(target.ids),
        is_shared,
    )
