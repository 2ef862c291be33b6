"""Writes a table of results from workdirs: what was run, where, for how long, and its scores over the seeds.

    python -m scripts.report runs/multi30k-* [--readme=README.md]

Runs that differ by nothing but their seed make one row for each way in which they were evaluated; where runs differ by
more, the first cell says in what. Scores are the mean over seeds, with the sample standard deviation where there are
several. Minutes are those of the training loop, validation included; what comes before its first step is not in them.
Ensembles are left out. With --readme the table replaces what stands between the two marks of that file; without, it is
printed.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts import evaluations, markdown
from scripts.evaluations import EVALUATION, SCORES, differing, mean_and_spread
from transformer import cli
from transformer import workdir as workdirs
from transformer.errors import UserError
from transformer.training import metrics

NAMED = {"data.name", "strategy", "beam_size", "length_penalty"}  # stand in every row, whether they differ or not
HEADER = ("config", "split", "decoding", "seeds", *SCORES, "training", "commit", "device")


@dataclass(frozen=True)
class Result:
    """One evaluation of one run."""

    run: dict[str, Any]  # its `run_settings`
    seed: int
    minutes: float
    commit: str
    device: str
    evaluation: dict[str, Any]

    @property
    def split(self) -> str:
        return self.evaluation["split"]

    @property
    def step(self) -> int:
        return self.evaluation["step"]

    @property
    def averaged(self) -> int:
        return self.evaluation["averaged"]

    @property
    def decoding(self) -> dict[str, Any]:
        return self.evaluation["decoding"]

    @property
    def row(self) -> str:
        """Equal for the seeds of one system, evaluated alike."""
        return json.dumps([self.run, self.split, self.decoding, self.averaged], sort_keys=True)


def read_results(path: Path) -> list[Result]:
    """The evaluations of a run's own splits. Raises UserError if there is no complete run with one."""
    workdir, config = workdirs.open_existing(path)
    if not workdir.is_complete():
        raise UserError(f"{path}: this run is not complete; the same transformer.train command goes on with it")
    found = [evaluations.read(file, EVALUATION) for file in sorted(workdir.evaluations.glob("*.json"))]
    own = [evaluation for evaluation in found if evaluation["split"] is not None and len(evaluation["models"]) == 1]
    if not own:
        raise UserError(f"{path}: has no evaluation; run python -m transformer.evaluate --workdir={path}")
    environment = evaluations.read_environment(workdir)
    common = (evaluations.run_settings(config), config.seed, minutes_of(workdir))
    where = (evaluations.describe_commit(environment), describe_devices(environment))
    results = [Result(*common, *where, evaluation) for evaluation in own]
    # A flag may have been typed that says what the configuration does: the same evaluation, by another name.
    return list({(result.row, result.step): result for result in results}.values())


def minutes_of(workdir: workdirs.Workdir) -> float:
    """Of the training loop, over all starts. Raises UserError if the record has no line that says it."""
    lines = metrics.read_lines(workdir.metrics)
    if not lines or "seconds" not in lines[-1]:
        raise UserError(f"{workdir.metrics}: is missing, empty or damaged, so how long the run took is not known")
    return lines[-1]["seconds"] / 60


def describe_devices(environment: dict[str, Any]) -> str:
    kinds = environment["devices"]
    return f"{environment['cpu_count']} CPU cores" if set(kinds) == {"cpu"} else f"{len(kinds)} {kinds[0]}"


def make_table(results: Sequence[Result]) -> str:
    """A Markdown table, a row for each group of seeds, followed by the scores' signatures."""
    runs, decodings = differing([result.run for result in results]), differing([result.decoding for result in results])
    table = markdown.table([HEADER, *(cells(group, runs, decodings) for group in grouped(results))])
    signatures = {f"`{result.evaluation[f'{name}_signature']}`" for result in results for name in SCORES}
    return table + "\nSignatures: " + ", ".join(sorted(signatures)) + ".\n"


def grouped(results: Iterable[Result]) -> Iterator[list[Result]]:
    """The results of each row: one a seed. Where a seed has several, of several checkpoints, each step is a row."""
    rows = defaultdict(list)
    for result in results:
        rows[result.row].append(result)
    for group in rows.values():
        if len({result.seed for result in group}) == len(group):
            yield group
        else:
            for step in sorted({result.step for result in group}):
                yield [result for result in group if result.step == step]


def cells(group: Sequence[Result], runs: Sequence[str], decodings: Sequence[str]) -> tuple[str, ...]:
    """A row's. `runs` and `decodings` are the settings in which those of the table differ."""
    first, steps = group[0], {result.step for result in group}
    name = [first.run["data.name"], *named(first.run, runs)]
    decoding = [describe_search(first.decoding), *named(first.decoding, decodings)]
    decoding += [f"mean of {first.averaged} checkpoints"] if first.averaged > 1 else []
    decoding += [f"step {first.step}"] if len(steps) == 1 else []
    return (
        ", ".join(name),
        first.split,
        ", ".join(decoding),
        ", ".join(str(seed) for seed in sorted(result.seed for result in group)),
        *(mean_and_spread([result.evaluation[name] for result in group]) for name in SCORES),
        f"{statistics.mean(result.minutes for result in group):.0f} min",
        ", ".join(sorted({result.commit for result in group})),
        first.device,
    )


def named(settings: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """The settings of these keys, but those that every row has."""
    return [f"{key}={settings[key]}" for key in sorted(keys) if key in settings and key not in NAMED]


def describe_search(decoding: Mapping[str, Any]) -> str:
    if decoding["strategy"] == "beam":
        return f"beam {decoding['beam_size']}, alpha {decoding['length_penalty']}"
    return decoding["strategy"]


def main(arguments: argparse.Namespace) -> None:
    table = make_table([result for name in arguments.workdirs for result in read_results(Path(name))])
    if arguments.readme is None:
        print(table, end="")
    else:
        markdown.replace(Path(arguments.readme), "results", table)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.report", __doc__)
    parser.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="of complete runs that were evaluated")
    parser.add_argument("--readme", metavar="FILE", help="put the table between this file's marks")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
