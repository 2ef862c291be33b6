"""Compares evaluated runs: scores, their differences with p-values, and the sentences behind them.

    python -m scripts.compare WORKDIR [WORKDIR ...] [--split=valid] [--data=FOLDER]
        [--checkpoint=best|last|STEP] [--average=N] [--decoding.KEY=VALUE ...] [--evaluate]
        [--samples=N] [--sentences=N] [--format=text|json]
        [--scores=NAME:FILE,...] [--scorer=NAME:COMMAND]

Runs that differ only in their seed are seeds of one system, and every other system is compared with
the first. A sweep's folder is replaced by its complete trials. Each workdir needs an evaluation of
the split by transformer.evaluate; --evaluate makes missing evaluations. If a workdir has several,
the flags that made one select it. An evaluation's .json file can replace a workdir, for example to
compare two evaluations of the same run, or evaluations made with transformer.evaluate
--output=FOLDER. For a single system, the sentences of the lowest chrF are shown. --scores and
--scorer add the metrics of other programs (docs/results.md).

`scripts/results/significance.py` documents intervals and p-values. `make_result` in
`scripts/results/result.py` documents the keys of the JSON object.
"""

import argparse
import json
import sys

from absl import logging

from scripts import score_flags
from transformer.config import cli
from transformer.data.sources.lines import count_noun
from transformer.data.sources.source import SPLITS
from transformer.support import files

MIN_SAMPLES = 40  # the 95 % interval of 40 resamples leaves out one at each end


def main(arguments: argparse.Namespace) -> None:
    from scripts.results.choice import check_comparable, choose
    from scripts.results.external_scores import attach
    from scripts.results.result import make_result
    from scripts.results.systems import group_systems
    from scripts.results.text import make_text
    from scripts.sweeping.expansion import expand_sweeps

    evaluations = attach(choose(expand_sweeps(arguments.workdirs), arguments), arguments)
    check_comparable(evaluations)
    systems = group_systems(evaluations)

    # Only a warning, because other code may compute the same.
    for system in systems:
        commits = sorted({evaluation.commit for evaluation in system.evaluations})
        if len(commits) > 1:
            logging.warning(
                "System %s: its seeds ran different code, %s.", system.label, ", ".join(commits)
            )

    references = evaluations[0].references
    logging.info(
        "Scoring %s of %s.",
        count_noun(len(evaluations), "evaluation"),
        count_noun(len(references), "sentence"),
    )
    result = make_result(systems, references, arguments.samples, arguments.sentences)
    if arguments.format == "text":
        text = make_text(result)
    else:
        text = json.dumps(files.six_digits(result)) + "\n"
    # Bytes, since file names and sentences may have characters that the terminal's encoding lacks.
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.compare", __doc__, overrides="decoding")
    parser.add_argument(
        "workdirs", nargs="+", metavar="WORKDIR", help="workdir of a run or sweep, or an evaluation"
    )
    # Not test by default: test data are not for choosing among systems.
    parser.add_argument(
        "--split", choices=SPLITS, default="valid", help="the split to compare on (valid)"
    )
    parser.add_argument("--data", metavar="FOLDER", help="another run or text, whose split that is")
    parser.add_argument(
        "--checkpoint", metavar="best|last|STEP", help="evaluations of this checkpoint"
    )
    parser.add_number("--average", None, "evaluations of the mean of N checkpoints")
    parser.add_argument(
        "--evaluate", action="store_true", help="run transformer.evaluate where one is missing"
    )
    score_flags.add_flags(parser, scores=True)
    parser.add_number("--samples", 1000, "bootstrap resamples", MIN_SAMPLES)
    parser.add_number("--sentences", 5, "how many sentences to show", least=0)
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="output format (text)"
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
