"""The work of `scripts.compare`."""

import argparse
import json
import sys
from collections.abc import Sequence

from absl import logging

from scripts.comparison.choice import check_comparable, choose
from scripts.comparison.result import make_result
from scripts.comparison.text import make_text
from scripts.systems import System, group_systems
from transformer import files
from transformer.data.sources.lines import counted
from transformer.errors import UserError

MIN_SAMPLES = 40  # the 95 % interval of so many leaves out one at each end


def main(arguments: argparse.Namespace) -> None:
    if len(arguments.workdirs) < 2:
        raise UserError(f"{arguments.workdirs[0]}: give at least two workdirs or evaluations to compare")
    if arguments.samples < MIN_SAMPLES:
        raise UserError(f"--samples={arguments.samples}: must be at least {MIN_SAMPLES}")
    if arguments.sentences < 0:
        raise UserError(f"--sentences={arguments.sentences}: must be at least 0")
    evaluations = choose(arguments)
    check_comparable(evaluations)
    first = evaluations[0]
    systems = group_systems(evaluations)
    warn_of_different_code(systems)
    sentences = counted(len(first.references), "sentence")
    logging.info("Scoring %s of %s.", counted(len(evaluations), "evaluation"), sentences)
    result = make_result(systems, first.references, arguments.samples, arguments.sentences)
    text = make_text(result) if arguments.format == "text" else json.dumps(files.six_digits(result)) + "\n"
    # Bytes, since file names and sentences may have characters that the terminal's encoding lacks.
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


def warn_of_different_code(systems: Sequence[System]) -> None:
    """Logs a warning if the seeds of one system ran different code. They remain one system."""
    for system in systems:
        if len(commits := {evaluation.commit for evaluation in system.evaluations}) > 1:
            logging.warning("System %s: its seeds ran different code, %s.", system.label, ", ".join(sorted(commits)))
