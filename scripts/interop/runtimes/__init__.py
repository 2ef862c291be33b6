"""Programs that decode with other toolkits. Each is run by another environment's Python and imports
nothing of ours.

`ask` starts `PYTHON -I scripts/interop/runtimes/NAME.py`, writes one JSON object to its standard
input, and reads one JSON object from its standard output. Log lines go to standard error. Exit code
0 means success, and 3 that the toolkit computes another model than was trained, so that there is
nothing to compare with. After any but 0, the last line of standard error is the reason that the
user reads. With -I the folder of the program, where ctranslate2.py is not the toolkit, is not on
the path of Python. An ImportError says that the toolkit is missing.

The request:
    folder           the file or folder of the model, an absolute path.
    sources          texts to translate, without line breaks; a language token such as ">>fra<<" may begin a text.
    references       for each source a target to score, {"text": TEXT, "pieces": [PIECE, ...]}, without end-of-sentence;
                     null: score nothing. A toolkit that takes tokens scores the pieces, any other
                     one the text.
    beam_size        hypotheses of the beam search.
    length_penalty   alpha: the search compares log-probability / length^alpha, where length counts end-of-sentence.
    max_length       tokens that a translation may have before end-of-sentence, at most.
    quantization     the value of --quantization; null: none.

The answer:
    precision        optional: "int8", for example, if the toolkit does not compute as the request says.
    versions         version of each package that computes, by name.
    greedy           for each source the translation of a greedy search, detokenized text; null: it has none.
    beam             for each source the best hypothesis of the beam search.
    scores           for each reference the log-probability of its tokens and end-of-sentence, a sum in nats; null if
                     the toolkit does not score, or the request has no references.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.support.environment import REPOSITORY
from transformer.support.errors import MALFORMED, UserError

FOLDER = Path(__file__).resolve().parent
NO_REFERENCE = 3  # exit code of a runtime whose toolkit computes another model than was trained


class Unavailable(Exception):
    """Raised if there is nothing to compare."""


class CannotDecode(UserError):
    """Raised if the other toolkit fails, for example since it cannot read this variant of a format."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the commands that write a certificate."""
    parser.add_argument("--sentences", help="sentences to compare, one a line")
    parser.add_argument(
        "--runtime", metavar="PYTHON|none", help="Python with the other toolkits (.venv-interop)"
    )


def find_python(flag: str | None, is_here: bool) -> Path | None:
    """Returns the Python of a runtime, which is this one if it `is_here` and may be missing; None:
    --runtime=none.

    Raises UserError if --runtime names no program.
    """
    if flag == "none":
        return None
    if flag is not None:
        if (program := shutil.which(flag)) is None:
            raise UserError(
                f"--runtime={flag}: no such program; name the Python with the other toolkits, or none"
            )
        return Path(program)
    return Path(sys.executable) if is_here else REPOSITORY / ".venv-interop" / "bin" / "python"


def ask(python: Path, runtime: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the other toolkit's answer.

    Raises Unavailable if it cannot start, lacks packages or breaks the protocol, and CannotDecode
    if it fails.
    """
    began = time.perf_counter()
    program = FOLDER / f"{runtime}.py"
    command = [python, "-I", program]
    text = json.dumps(request)
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise Unavailable(f"{python}: {error.strerror}") from error
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        if reason.startswith(("ModuleNotFoundError", "ImportError")):
            raise Unavailable(f"{python}: {reason}; make interop")
        if done.returncode == NO_REFERENCE:
            raise Unavailable(reason)
        raise CannotDecode(f"the other toolkit cannot decode it: {reason:.300}")
    try:
        answer = json.loads(done.stdout)
        count = len(request["sources"])
        scores = answer["scores"]
        if (
            not len(answer["greedy"] or answer["beam"])
            == len(answer["beam"])
            == len(scores or answer["beam"])
            == count
        ):
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
