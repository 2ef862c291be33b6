"""Programs that decode with other toolkits, in another Python environment.

`ask` starts `PYTHON -I scripts/interop/runtimes/NAME.py`, writes one JSON object to its standard
input, and reads one JSON object from its standard output. Log lines go to standard error. Exit code
0 means success. Exit code 3 means that the toolkit decodes another model than it trains, so that
there is nothing to compare. After any code but 0, the last line of standard error is the reason
that the user reads. An ImportError there means that the toolkit is missing.

The programs import nothing from this project. Because of -I, Python's path does not contain their
folder, where ctranslate2.py would hide the toolkit.

The request:
    folder           absolute path of the model's file or folder.
    sources          texts to translate, without line breaks. A text may begin with a language token
                     such as ">>fra<<".
    references       for each source a target to score, {"text": TEXT, "pieces": [PIECE, ...]},
                     without end-of-sentence; null: score nothing. A toolkit that takes tokens
                     scores the pieces, any other toolkit the text.
    beam_size        hypotheses of the beam search.
    length_penalty   alpha: the search compares log-probability / length^alpha, where length counts
                     end-of-sentence.
    max_length       largest number of tokens of a translation, without end-of-sentence.
    quantization     the value of --quantization; null: none.

The answer:
    precision        optional: "int8", for example, if the toolkit ignores the requested precision.
    versions         version of each package that computes, by name.
    greedy           for each source the translation of a greedy search, detokenized text; null if
                     the toolkit has no greedy search.
    beam             for each source the best hypothesis of the beam search.
    scores           for each reference the log-probability of its tokens and end-of-sentence, a sum
                     in nats; null if the toolkit does not score, or there are no references.
    search_seconds   optional: the time of the beam search, from texts to texts, after a warm-up.

A search never generates padding or the unknown token.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.support.environment import REPOSITORY
from transformer.support.errors import MALFORMED, UserError

FOLDER = Path(__file__).resolve().parent
NO_REFERENCE = 3  # exit code of a runtime whose toolkit computes another model than was trained


class Unavailable(Exception):
    """Raised if there is nothing to compare."""


class CannotDecode(UserError):
    """Raised if the other toolkit fails, for example on an unsupported variant of a format."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the commands that write a certificate."""
    parser.add_argument("--sentences", help="file with the sentences to compare")
    parser.add_argument(
        "--runtime", metavar="PYTHON|none", help="Python with the other toolkits (.venv-interop)"
    )


def find_python(flag: str | None, is_here: bool) -> Path | None:
    """Returns the Python of a runtime, or None for --runtime=none.

    Without a flag, the result is this Python if `is_here`, otherwise the Python of .venv-interop,
    which may be missing. Raises UserError if there is no such program.
    """
    if flag == "none":
        return None
    if flag is None:
        return Path(sys.executable) if is_here else REPOSITORY / ".venv-interop" / "bin" / "python"
    program = shutil.which(flag)
    if program is None:
        raise UserError(
            f"--runtime={flag}: no such program; name the Python with the other toolkits, or none"
        )
    return Path(program)


def ask(python: Path, runtime: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer of another toolkit in Python. Raises the errors of `run`."""
    return run([python, "-I", FOLDER / f"{runtime}.py"], request)


def run(command: Sequence[str | Path], request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer of a program, the last word of the command.

    Raises Unavailable if it cannot start, lacks packages or breaks the protocol, and CannotDecode
    if it fails.
    """
    began = time.perf_counter()
    python, *_, program = command
    try:
        process = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise Unavailable(f"{python}: {error.strerror}") from error
    code = process.returncode
    if code:
        reason = (process.stderr.strip() or f"exit code {code}").splitlines()[-1]
        # The environment lacks the toolkit, or the toolkit is not a reference for this model.
        if reason.startswith(("ModuleNotFoundError", "ImportError")):
            raise Unavailable(f"{python}: {reason}; make interop")
        if code == NO_REFERENCE:
            raise Unavailable(reason)
        raise CannotDecode(f"the other toolkit cannot decode it: {reason:.300}")
    try:
        answer = json.loads(process.stdout)
        # Greedy translations and scores are optional.
        beam = answer["beam"]
        scores = answer["scores"]
        count = len(request["sources"])
        if {len(texts) for texts in (beam, answer["greedy"] or beam, scores or beam)} != {count}:
            raise ValueError(f"not {count} translations")
        is_finite = all(map(math.isfinite, scores or []))
        answer |= {"versions": dict(answer["versions"]), "seconds": time.perf_counter() - began}
    except MALFORMED as error:
        raise Unavailable(
            f"{program}: the answer breaks the protocol ({type(error).__name__}: {error})"
        ) from error
    if not is_finite:
        raise CannotDecode("the other toolkit has scores that are NaN or infinite")
    return answer
