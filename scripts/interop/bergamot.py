"""Import of models of Bergamot and Firefox Translations.

A model is a file in Marian's binary format with int8 matrices, and a shortlist.
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
INT8 = 0x4101  # the values times a factor, and then the factor
SHORTLIST_MAGIC = 0xF11A48D5013417F5
LONGEST = 1000  # translations of a token in a shortlist
EMBEDDINGS = "Wemb"  # part of the names of the int8 matrices that are not transposed
# The search of Firefox's engine, which reads no file of settings.
SEARCH = marian.SEARCH_DEFAULTS | {"beam-size": 1, "normalize": 1.0, "max-length-factor": 2.0}


def read(path: Path) -> PortableModel:
    """Reads a .bin file, or the only one in a folder, with its shortlist.

    Raises UserError if the model is damaged or cannot be expressed here.
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
    """Returns the model files in a path. They begin with the version."""
    models = []
    for file in sorted(path.glob("*.bin")) if path.is_dir() else [path]:
        if file.suffix == ".bin":
            with untrusted.reading(file), untrusted.check_file(file).open("rb") as content:
                if content.read(8) == VERSION.to_bytes(8, "little"):
                    models.append(file)
    return models


def read_arrays(path: Path) -> Arrays:
    """Reads the arrays of a file in Marian's binary format, without the factors of activations.

    int8 matrices become float32.
    """
    arrays = {}
    with untrusted.reading(path):
        file = untrusted.Cursor(path)
        file.take(8)  # the version

        # For each array: the lengths of name, type, shape and data. Then all names and all shapes.
        headers = file.array("<u8", [file.unsigned(8), 4]).tolist()
        names = [file.name(length) for length, _, _, _ in headers]
        shapes = [file.array("<i4", [rank]).tolist() for _, _, rank, _ in headers]
        file.take(file.unsigned(8))  # alignment

        for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
            # The data of an array may be longer than its values.
            end = file.position + size
            if kind == INT8:
                is_transposed = EMBEDDINGS not in name
                values = file.array("i1", shape[::-1] if is_transposed else shape)
                factor = file.array("<f4", [1])

                # An infinite or NaN value is an error below.
                with np.errstate(all="ignore"):
                    values = values / factor
                arrays[name] = values.T if is_transposed else values
            elif not name.endswith("_QuantMultA"):
                arrays[name] = file.array(DTYPES[kind], shape)
            file.take(end - file.position)
        untrusted.check_finite(path, arrays)
    return arrays


def read_shortlist(path: Path, source: Side, target: Side, is_shared: bool) -> Shortlist:
    """Reads a lexical shortlist. The translations of a token have no order."""
    with untrusted.reading(path):
        file = untrusted.Cursor(path)
        magic = file.unsigned(8)
        if magic != SHORTLIST_MAGIC:
            raise UserError(
                f"begins with {magic:#x}, must begin with {SHORTLIST_MAGIC:#x}, as shortlists do"
            )

        _checksum, num_frequent, _most, num_words, num_ids = file.array("<u8", [5]).tolist()

        # The translations of source token i are ids[offsets[i] : offsets[i + 1]].
        offsets = file.array("<u8", [num_words]).astype(np.int64)
        ids = file.array("<u4", [num_ids]).astype(np.int64)

    # Every id must exist in the vocabularies, and every slice of `ids` must exist.
    counts = np.diff(offsets)
    is_target = num_frequent <= target.size and ids.max(initial=0) < target.size
    if len(counts) != source.size or not is_target:
        raise UserError(
            f"{path}: is for other vocabularies "
            f"({len(counts)} source tokens, must be {source.size})"
        )
    if offsets[0] != 0 or offsets[-1] != num_ids or counts.min() < 0 or counts.max() > LONGEST:
        raise UserError(
            f"{path}: damaged (its offsets must ascend to {num_ids} by at most {LONGEST})"
        )

    tokens = np.array(target.tokens)

    # The last row is for source tokens that Marian lacks: their id is -1.
    table = np.full((source.size + 1, counts.max()), ABSENT, np.int32)
    rows = np.repeat(np.arange(source.size), counts)
    columns = np.arange(num_ids) - offsets[rows]
    table[rows, columns] = tokens[ids]

    # The first ids are frequent tokens. The search here always adds the special tokens.
    frequent = tokens[:num_frequent]
    frequent = frequent[frequent >= SPECIAL].astype(np.int32)
    return Shortlist(table[source.ids], frequent, len(target.ids), is_shared)
