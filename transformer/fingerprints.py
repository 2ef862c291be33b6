"""What a run is made of beside its configuration: digests of its vocabulary and corpora, so that it takes no others.

They stand in the workdir from the first start on. Runs that began before there was this record go on without it.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from transformer import files
from transformer.errors import UserError

FILE_NAME = "contents.json"
VOCABULARY, TRAINING_CORPUS, VALIDATION_CORPUS = "the vocabulary", "the training corpus", "the validation corpus"
CHANGED_DATA = "the data, or the code that reads them, have changed since: put them back, or name another --workdir"
ADVICE = {
    VOCABULARY: "put tokenizer*.model back from a copy, or delete it and run the training command: it makes the same",
    TRAINING_CORPUS: CHANGED_DATA,
    VALIDATION_CORPUS: CHANGED_DATA,
}


def check(workdir: Path, found: Mapping[str, str]) -> None:
    """Raises UserError if the run in this workdir began with other contents than these digests say."""
    path = workdir / FILE_NAME
    if not path.exists():
        return
    try:
        recorded = json.loads(path.read_bytes())
        differing = [name for name, digest in found.items() if recorded[name] != digest]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}); delete it to go on without it") from error
    if differing:
        raise UserError(f"{path}: {differing[0]} is not the one that this run began with; {ADVICE[differing[0]]}")


def record(workdir: Path, found: Mapping[str, str]) -> None:
    """Notes what the run in this workdir is made of."""
    files.write_json(workdir / FILE_NAME, dict(found))
