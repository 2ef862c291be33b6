"""The JSON files of `transformer.evaluate`, with checks of the values that other commands read."""

from pathlib import Path
from typing import Any

from transformer.decoding.metrics import METRICS
from transformer.support import files
from transformer.support.errors import MALFORMED, UserError
from transformer.workdir import Workdir

Json = dict[str, Any]  # the object of a file

RESULT_TYPES = {
    "split": str | None,
    "step": int,
    "averaged": int,
    "sentences": int,
    "models": list,
    "decoding": dict,
    "shortlist": str | None,
}
# The metrics that the oldest evaluations have too.
FIRST_METRICS = ("bleu_lowercase_tokenized", "bleu", "chrf")
RESULT_TYPES |= {name: float | int for name in FIRST_METRICS}
RESULT_TYPES |= {f"{name}_signature": str for name in FIRST_METRICS}


def read_result(path: Path) -> Json:
    """Reads a JSON object that transformer.evaluate printed or saved.

    Raises UserError if it is damaged.
    """
    # The metrics depend on the version and the flags of transformer.evaluate.
    result = read_object(path, {})
    if "evaluations" in result:
        raise UserError(
            f"{path}: is the record of a run, which has no translations to compare; name the "
            "workdir, or print its scores with scripts.report"
        )
    result = read_object(path, RESULT_TYPES)
    return read_object(path, {name: float | int for name in METRICS if name in result})


def read_object(path: Path, types: dict) -> Json:
    """Reads a JSON object. Raises UserError if it cannot be read or lacks values of these types."""

    def check(content: Json) -> Json:
        for key, expected in types.items():
            if not isinstance(content[key], expected):
                raise TypeError(f"{key}={content[key]}")
        return content

    return files.read_json(path, check, "run transformer.evaluate again or restore it")


def find_run(path: Path, result: Json) -> Path:
    """Returns the workdir of the run that the evaluation in a file belongs to.

    It is the workdir that holds the file, or the one that `result` names, if the file was written
    elsewhere with `--output=FOLDER`.
    """
    # A moved workdir is found by the place of the file, as its recorded path is outdated.
    workdir = Workdir(path.parent.parent)
    if workdir.evaluations == path.parent and workdir.config.exists():
        return workdir.path
    try:
        return Path(result["models"][0]["workdir"])
    except (*MALFORMED, IndexError) as error:
        raise UserError(
            f"{path}: is in no workdir, and names none; run transformer.evaluate again"
        ) from error
