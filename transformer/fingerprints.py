"""Fingerprints of a run's vocabulary and corpora, recorded in its workdir so that it resumes with the same ones."""

import json
from collections.abc import Mapping
from pathlib import Path

from transformer.errors import UNREADABLE, UserError

FILE_NAME = "contents.json"
VOCABULARY, TRAINING_CORPUS, VALIDATION_CORPUS = "the vocabulary", "the training corpus", "the validation corpus"
CHANGED_DATA = "the data or the code that reads it has changed since: restore it, or name another --workdir"
ADVICE = {
    VOCABULARY: "restore tokenizer*.model, or delete it and run the training command, which makes the same again",
    TRAINING_CORPUS: CHANGED_DATA,
    VALIDATION_CORPUS: CHANGED_DATA,
}


def check(workdir: Path, fingerprints: Mapping[str, str]) -> None:
    """Raises UserError if fingerprints differ from the recorded ones, or the record is damaged."""
    path = workdir / FILE_NAME
    if not path.exists():
        return
    try:
        recorded = json.loads(path.read_bytes())
        differing = [name for name, digest in fingerprints.items() if recorded[name] != digest]
    except UNREADABLE as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}); delete it to continue without it") from error
    if differing:
        raise UserError(f"{path}: {differing[0]} is not the one that this run began with; {ADVICE[differing[0]]}")


def read(workdir: Path) -> dict[str, str]:
    """Returns the recorded fingerprints; none if there is no record, or it is damaged."""
    try:
        return dict(json.loads((workdir / FILE_NAME).read_bytes()))
    except UNREADABLE:
        return {}
