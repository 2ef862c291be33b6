"""Models of Bergamot and Firefox Translations, in and out.

A model is a file in Marian's binary format with int8 matrices, and a shortlist.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from scripts.interop import (
    activations,
    marian,
    marian_architecture,
    marian_binary,
    untrusted,
    vocabularies,
)
from scripts.interop.marian_binary import FACTOR, Item
from scripts.interop.portable import ABSENT, PortableModel
from scripts.interop.sentences import Sentences
from scripts.interop.vocabularies import Side
from transformer.decoding.shortlist import Shortlist
from transformer.support import files
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, SPECIAL

SHORTLIST_MAGIC = 0xF11A48D5013417F5
LONGEST = 1000  # translations of a token in a shortlist
NUM_FREQUENT = 50  # as in Mozilla's files, also in the header of a new shortlist
# The engines multiply int8 matrices in blocks: an inner width must be a multiple of the first
# number, the number of tokens of the second.
WIDTH_MULTIPLE = 64
VOCABULARY_MULTIPLE = 8
# The engine decodes models with pre-norm, or with a separate output table, to other translations.
EXPRESSIBLE = {"model.share_embeddings": ("all", "target"), "model.norm_position": ("post",)}
# Settings of the architecture that Marian's engine asks for, beside those of other Marian models.
ENGINE_SETTINGS = {
    "dec-cell-base-depth": 2,
    "dec-cell-high-depth": 1,
    "enc-cell": "gru",
    "enc-cell-depth": 1,
    "enc-type": "bidirectional",
    "layer-normalization": False,
    "lemma-dim-emb": 0,
    "output-omit-bias": False,
    "skip": False,
    "tied-embeddings-src": False,
    "transformer-ffn-depth": 2,
    "transformer-no-projection": False,
    "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False,
    "ulr": False,
    "version": "v1.9.56",
}
# The settings of the search in Mozilla's folders.
ENGINE_SEARCH = {
    "beam-size": 1,
    "normalize": 1.0,
    "word-penalty": 0,
    "mini-batch": 64,
    "maxi-batch": 1000,
    "maxi-batch-sort": "src",
    "workspace": 2000,
    "max-length-factor": 2.5,
    "gemm-precision": "int8shiftAlphaAll",
}
# The search of Firefox's engine, which reads no file of settings.
SEARCH = marian.SEARCH_DEFAULTS | {"beam-size": 1, "normalize": 1.0, "max-length-factor": 2.0}


def read(path: Path) -> PortableModel:
    """Reads a .bin file, or the only one in a folder, with its shortlist.

    Raises UserError if the model is damaged or cannot be expressed here.
    """
    file = marian.only_model(path, models_in(path))
    items = marian_binary.read(file)
    arrays = {name: item.array for name, item in items.items() if not name.endswith(FACTOR)}
    model = marian.assemble(file, arrays, SEARCH)
    model = model._replace(factors=marian_binary.factors_in(items) or None)
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
    # A folder of another format may have large files, links, or pointers of Git LFS.
    files_of = filter(untrusted.is_readable, path.glob("*.bin")) if path.is_dir() else [path]
    for file in sorted(files_of):
        if file.suffix == ".bin":
            with untrusted.reading(file), untrusted.check_file(file).open("rb") as content:
                if content.read(8) == marian_binary.VERSION.to_bytes(8, "little"):
                    models.append(file)
    return models


def files_in(folder: Path) -> dict[str, Any]:
    """Returns the names of the model, of the shortlist or None, and of the vocabularies."""
    (model,) = folder.glob("model*.bin")
    shortlists = [path.name for path in folder.glob("lex*.bin")]
    return {
        "model": model.name,
        "shortlist": shortlists[0] if shortlists else None,
        "vocabularies": sorted(path.name for path in folder.glob("*vocab*.spm")),
    }


def write(
    model: PortableModel,
    folder: Path,
    _quantization: str | None,
    _python: Path | None,
    sentences: Sentences | None,
    *_: Any,
) -> None:
    """Writes the model in int8, its vocabularies and shortlist, and the settings of the engine.

    The factors of activations are those of an imported model. Otherwise they are measured on the
    `sentences` or on the validation split. Raises UserError if the engine cannot express the model,
    if a weight is not finite, or if there are no sentences.
    """
    check_expressible(model, "bergamot")
    config = marian.architecture_of(model)
    sides = [vocabularies.engine_side(side) for side in model.tokenizer.sides]
    arrays = marian.to_arrays(model, config, *sides)
    factors = model.factors or activations.measure(model, config, sentences)
    items = marian_binary.to_items(arrays, factors)
    settings = ENGINE_SETTINGS | marian_architecture.from_config(config)
    settings["dim-vocabs"] = [side.size for side in sides]
    text = marian.to_yaml(dict(sorted(settings.items())))
    items[marian.SETTINGS] = Item(np.frombuffer(f"{text}\0".encode(), np.int8))

    pair = config["data.source_language"] + config["data.target_language"]
    name = f"model.{pair}.intgemm.alphas.bin"
    files.write_bytes(folder / name, marian_binary.write(items))
    stems = ("vocab", "vocab") if model.tokenizer.is_shared else ("srcvocab", "trgvocab")
    names = [f"{stem}.{pair}.spm" for stem in stems]
    for vocabulary, side in zip(names, sides, strict=True):
        files.write_bytes(folder / vocabulary, side.vocabulary.serialized)
    search = {"relative-paths": True, "models": [name], "vocabs": names} | ENGINE_SEARCH
    if model.shortlist is not None:
        shortlist = f"lex.50.50.{pair}.s2t.bin"
        files.write_bytes(folder / shortlist, shortlist_content(model.shortlist, *sides))
        search["shortlist"] = [shortlist, False]
    files.write_text(folder / "config.intgemm8bitalpha.yml", marian.to_yaml(search))


def check_expressible(model: PortableModel, form: str) -> None:
    """Raises UserError, with the key, for an architecture or a size that the engine lacks.

    Weights that are not finite are an error too. `form` is the name of the format.
    """
    config = marian.architecture_of(model)
    model.check_expressible(form, marian_architecture.expressible(config) | EXPRESSIBLE)
    for key in ("model.d_model", "model.d_ff"):
        if config[key] % WIDTH_MULTIPLE:
            raise UserError(
                f"--format={form}: cannot express {key}={config[key]}, only multiples of "
                f"{WIDTH_MULTIPLE}"
            )
    for side in map(vocabularies.marian_side, model.tokenizer.sides):
        if side.size % VOCABULARY_MULTIPLE:
            raise UserError(
                f"--format={form}: cannot express a vocabulary of {side.size} tokens, only "
                f"multiples of {VOCABULARY_MULTIPLE}; see tokenizer.vocab_size"
            )
    for name, array in model.parameters.items():
        if not np.isfinite(array).all():
            raise UserError(
                f"--format={form}: {name} has values that are NaN or infinite; choose another "
                "checkpoint with --checkpoint=STEP"
            )


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


def shortlist_content(shortlist: Shortlist, source: Side, target: Side) -> bytes:
    """Returns the content of a lexical shortlist.

    The engine adds the first ids of the vocabulary to the candidates of each sentence. Other
    frequent tokens become translations of end-of-sentence, which each source has.
    """
    frequent = {target.ids[token] for token in [*range(SPECIAL), *shortlist.frequent]}
    num_first = 0
    while num_first in frequent:
        num_first += 1
    later_frequent = {id_ for id_ in frequent if id_ > num_first}
    lists = []
    for token in source.tokens:
        translations = shortlist.translations[token] if token != ABSENT else []
        ids = {target.ids[translation] for translation in translations if translation != ABSENT}
        ids |= later_frequent if token == EOS else set()
        lists.append(sorted(ids - {ABSENT}))

    offsets = np.cumsum([0, *map(len, lists)])
    ids = np.array([id_ for ids in lists for id_ in ids], "<u4").tobytes()
    counts = struct.pack("<4Q", num_first, NUM_FREQUENT, len(offsets), int(offsets[-1]))
    content = counts + offsets.astype("<u8").tobytes() + ids
    return struct.pack("<2Q", SHORTLIST_MAGIC, checksum(content)) + content


def checksum(content: bytes) -> int:
    """Returns Marian's checksum of a shortlist after the checksum, over words of 8 bytes."""
    total = 0
    for word in np.frombuffer(content, "<u8", len(content) // 8).tolist():
        total ^= word + 0x9E3779B9 + (total << 6) + (total >> 2)
        total &= 0xFFFFFFFFFFFFFFFF
    return total
