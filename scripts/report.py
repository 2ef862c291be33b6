"""Writes a table of results from workdirs: what was run, where, for how long, and its scores over the seeds.

    python -m scripts.report runs/multi30k-* [--readme=README.md]

Runs that differ by nothing but their seed make one row for each way in which they were evaluated. Scores are the mean
over seeds, with the sample standard deviation where there are several. With --readme the table replaces what stands
between the two marks of that file; without, it is printed.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts import evaluations, markdown
from scripts.evaluations import EVALUATION, SCORES, WHERE, mean_and_spread
from transformer import command
from transformer import workdir as workdirs
from transformer.config_keys import flatten
from transformer.errors import UserError

HEADER = ("data", "split", "decoding", "seeds", *SCORES, "training", "commit", "device")


@dataclass(frozen=True)
class Result:
    """One evaluation of one run."""

    run: tuple  # everything in the configuration but seed and place
    seed: int
    data: str
    minutes: float
    commit: str
    device: str
    evaluation: dict[str, Any]

    @property
    def row(self) -> tuple:
        return (self.run, self.evaluation["split"], self.decoding)

    @property
    def decoding(self) -> str:
        settings = self.evaluation["decoding"]
        how = f"beam {settings['beam_size']}, alpha {settings['length_penalty']:g}"
        return how if settings["strategy"] == "beam" else settings["strategy"]

    @property
    def averaged(self) -> int:
        return self.evaluation["averaged"]


def read_results(path: Path) -> list[Result]:
    """The evaluations of a run's own splits. Raises UserError if there is no complete run with one."""
    workdir, config = workdirs.open_existing(path)
    if not workdir.is_complete():
        raise UserError(f"{path}: this run is not complete; the same transformer.train command goes on with it")
    found = [evaluations.read(file, EVALUATION) for file in sorted(workdir.evaluations.glob("*.json"))]
    own = [evaluation for evaluation in found if evaluation["split"] is not None]
    if not own:
        raise UserError(f"{path}: has no evaluation; run python -m transformer.evaluate --workdir={path}")
    environment = evaluations.read_environment(workdir)
    last = json.loads(workdir.metrics.read_text(encoding="utf-8").splitlines()[-1])
    run = tuple(sorted((key, str(value)) for key, value in flatten(config).items() if key not in WHERE))
    common = (run, config.seed, config.data.name, last["seconds"] / 60)
    where = (evaluations.describe_commit(environment), describe_devices(environment))
    return [Result(*common, *where, evaluation) for evaluation in own]


def describe_devices(environment: dict[str, Any]) -> str:
    kinds = environment["devices"]
    return f"{environment['cpu_count']} CPU cores" if set(kinds) == {"cpu"} else f"{len(kinds)} {kinds[0]}"


def make_table(results: Sequence[Result]) -> str:
    """A Markdown table, a row for each group of seeds, followed by the scores' signatures."""
    rows = defaultdict(list)
    for result in results:
        rows[(*result.row, result.averaged)].append(result)
    table = markdown.table([HEADER, *(cells(group) for group in rows.values())])
    signatures = {f"`{result.evaluation[f'{name}_signature']}`" for result in results for name in SCORES}
    return table + "\nSignatures: " + ", ".join(sorted(signatures)) + ".\n"


def cells(group: Sequence[Result]) -> tuple[str, ...]:
    first = group[0]
    averaged = f", mean of {first.averaged} checkpoints" if first.averaged > 1 else ""
    return (
        first.data,
        first.evaluation["split"],
        first.decoding + averaged,
        ", ".join(str(seed) for seed in sorted(result.seed for result in group)),
        *(mean_and_spread([result.evaluation[name] for result in group]) for name in SCORES),
        f"{statistics.mean(result.minutes for result in group):.0f} min",
        ", ".join(sorted({result.commit for result in group})),
        first.device,
    )


def main(arguments: argparse.Namespace) -> None:
    table = make_table([result for name in arguments.workdirs for result in read_results(Path(name))])
    if arguments.readme is None:
        print(table, end="")
    else:
        markdown.replace(Path(arguments.readme), "results", table)


def make_parser() -> command.Parser:
    parser = command.Parser("scripts.report", __doc__)
    parser.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="of complete runs that were evaluated")
    parser.add_argument("--readme", metavar="FILE", help="put the table between this file's marks")
    return parser


if __name__ == "__main__":
    command.run(make_parser(), main)
