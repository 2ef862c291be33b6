"""The formats that models come in from and go out to."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scripts.interop import (
    bergamot,
    ctranslate2,
    ctranslate2_reader,
    hugging_face,
    marian,
    stablehlo,
    untrusted,
    web,
)
from scripts.interop.portable import PortableModel
from scripts.interop.sentences import Sentences
from transformer.support.errors import UserError

# Certificates turn off these parts of the search in a workdir, because no toolkit has them.
LIMITED_SEARCH = {
    "decoding.banned": "",
    "decoding.coverage_penalty": 0.0,
    "decoding.forbid_unk": True,
    "decoding.length_penalty_form": "power",
    "decoding.shrinking_beam": False,
    "decoding.well_formed": False,
}
# The search of most toolkits, in configuration keys.
COMMON_SEARCH = LIMITED_SEARCH | {
    "decoding.banned_pieces": (),
    "decoding.min_length": 0,
    "decoding.no_repeat_ngram": 0,
    "decoding.stopping": "ended",
}


Writer = Callable[
    [PortableModel, Path, str | None, Path | None, Sentences | None, Path | None], None
]


class Format(NamedTuple):
    """A format of another toolkit. The two commands read everything that depends on it here.

    recognises(path): the models there, or True, if the files have the names of this format; None
        if the format cannot be imported.
    read(path): the model. Raises UserError if the model cannot be read or expressed here.
    write(model, folder, quantization, python, sentences, worker): writes the model into a new
        folder. The toolkit's own converter runs in `python`. A format that measures the model does
        so on the sentences. `worker` is the folder of --engine, or None. Raises UserError, with the
        key, for a value that the format cannot express. None if the format cannot be exported.
    quantizations: the values of --quantization.
    runtime: the module in scripts/interop/runtimes/ that decodes with the toolkit, in another
        Python environment.
    search: configuration keys and values that make the search here equal to the toolkit's search.
    has_own_search: True if the toolkit runs the search of the workdir, in this environment.
    engine_folder: for formats of exports that the engines of engines.py decode, the folder of their
        files in the exported one.
    """

    recognises: Callable[[Path], bool | list[Path]] | None
    read: Callable[[Path], PortableModel] | None
    write: Writer | None
    quantizations: tuple[str, ...] = ()
    runtime: str | None = None
    search: Mapping[str, Any] = COMMON_SEARCH
    has_own_search: bool = False
    engine_folder: str | None = None


FORMATS = {
    "ctranslate2": Format(
        ctranslate2_reader.recognises,
        ctranslate2_reader.read,
        ctranslate2.write,
        quantizations=ctranslate2.QUANTIZATIONS,
        runtime="ctranslate2",
    ),
    "huggingface": Format(
        hugging_face.recognises,
        hugging_face.read,
        hugging_face.write,
        quantizations=("bfloat16", "float16"),
        runtime="hugging_face",
        search=LIMITED_SEARCH,
    ),
    "marian": Format(
        marian.models_in,
        marian.read,
        marian.write,
        runtime="marian",
        search=COMMON_SEARCH | {"decoding.shrinking_beam": True},
    ),
    "bergamot": Format(
        bergamot.models_in,
        bergamot.read,
        bergamot.write,
        quantizations=("int8",),
        runtime="bergamot",
        engine_folder=".",
    ),
    "web": Format(None, None, web.write, quantizations=("int8",), engine_folder=web.MODEL),
    "safetensors": Format(None, None, stablehlo.write_safetensors),
    "stablehlo": Format(
        None,
        None,
        stablehlo.write_stablehlo,
        quantizations=("bfloat16",),
        runtime="stablehlo",
        search=stablehlo.LOST,
        has_own_search=True,
    ),
}
UNPACK = {".gz": "gunzip", ".argosmodel": "unzip", ".zip": "unzip"}  # by suffix of a file


def recognise(path: Path) -> str:
    """Returns the name of the format of a file or folder.

    Raises UserError unless exactly one format matches.
    """
    if not path.exists():
        raise UserError(f"--from={path}: no such file or folder")
    # The names of files decide. The readers check their content.
    importable = {name: entry for name, entry in FORMATS.items() if entry.recognises is not None}
    names = [name for name, entry in importable.items() if entry.recognises(path)]
    if len(names) == 1:
        return names[0]

    description = "looks like " + " and ".join(names)
    if not names:
        # Pickles and archives have more specific messages.
        untrusted.refuse_pickles(path)
        for file in [path, *path.glob("*")]:
            if file.suffix in UNPACK:
                raise UserError(
                    f"--from={path}: unpack {file.name} first, with {UNPACK[file.suffix]}"
                )
        description = "is of no known format"
    raise UserError(
        f"--from={path}: {description}; name the folder or file of one model "
        f"({', '.join(importable)})"
    )
