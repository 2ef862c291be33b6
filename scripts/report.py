"""Writes a table of results from workdirs: configuration, decoding, scores over seeds, training time and hardware.

    python -m scripts.report runs/multi30k-* [--readme=README.md]

Runs that differ only in their seed share one row for each way in which they were evaluated. If the runs differ in more,
the first column shows in what. Scores are the mean over seeds and, with several, the sample standard deviation. Minutes
are those of the training loop, validations included, without the preparation before it. Ensembles are left out.
--readme replaces the text between two marks in a file with the table. Without it the table is printed.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts import markdown
from scripts.evaluations import SCORES, Evaluation, differing_keys, mean_and_spread, read_evaluations
from transformer import cli
from transformer.errors import UserError
from transformer.run.record import read_record
from transformer.workdir import Workdir, open_existing

IN_EVERY_ROW = {"data.name", "strategy", "beam_size", "length_penalty"}  # even if they do not differ
HEADER = ("config", "split", "decoding", "seeds", *SCORES, "training", "commit", "device")


def main(arguments: argparse.Namespace) -> None:
    table = make_table([evaluation for name in arguments.workdirs for evaluation in read_results(Path(name))])
    if arguments.readme is None:
        print(table, end="")
    else:
        markdown.replace(Path(arguments.readme), "results", table)


def read_results(path: Path) -> list[Evaluation]:
    """Returns the evaluations of a run on its own splits. Raises UserError if it is not complete or has none."""
    workdir, _ = open_existing(path)
    if not workdir.is_complete():
        raise UserError(f"{path}: this run is not complete; run the same transformer.train command to continue it")
    found = [each for each in read_evaluations(workdir) if each.result["split"] is not None]
    if not found:
        raise UserError(f"{path}: has no evaluation; run python -m transformer.evaluate --workdir={path}")
    # A flag that repeats the configured value makes the same evaluation under another name.
    return list({(row_key(each), each.result["step"]): each for each in found}.values())


def row_key(evaluation: Evaluation) -> str:
    """Returns a text that is equal for evaluations that differ only in seed and step."""
    result = evaluation.result
    key = [evaluation.run_settings, result["split"], evaluation.decoding, result["averaged"]]
    return json.dumps(key, sort_keys=True)


def make_table(evaluations: Sequence[Evaluation]) -> str:
    """Returns a Markdown table with a row for each group of seeds, followed by the signatures of the scores."""
    run_keys = differing_keys([each.run_settings for each in evaluations])
    decoding_keys = differing_keys([each.decoding for each in evaluations])
    table = markdown.table([HEADER, *(make_row(group, run_keys, decoding_keys) for group in group_rows(evaluations))])
    signatures = {f"`{each.result[f'{name}_signature']}`" for each in evaluations for name in SCORES}
    return table + "\nSignatures: " + ", ".join(sorted(signatures)) + ".\n"


def group_rows(evaluations: Iterable[Evaluation]) -> Iterator[list[Evaluation]]:
    """Yields the evaluations of each row, one a seed. Where a seed has several steps, each step makes a row."""
    groups = defaultdict(list)
    for evaluation in evaluations:
        groups[row_key(evaluation)].append(evaluation)
    for group in groups.values():
        if len({each.config.seed for each in group}) == len(group):
            yield group
        else:
            for step in sorted({each.result["step"] for each in group}):
                yield [each for each in group if each.result["step"] == step]


def make_row(group: Sequence[Evaluation], run_keys: Sequence[str], decoding_keys: Sequence[str]) -> tuple[str, ...]:
    """Returns the cells of a row. The keys are the settings in which the rows of the table differ."""
    first, result, steps = group[0], group[0].result, {each.result["step"] for each in group}
    config = [first.config.data.name, *show_settings(first.run_settings, run_keys)]
    decoding = [describe_search(first.decoding), *show_settings(first.decoding, decoding_keys)]
    decoding += [f"mean of {result['averaged']} checkpoints"] if result["averaged"] > 1 else []
    decoding += [f"step {result['step']}"] if len(steps) == 1 else []
    minutes = [read_record(Workdir(each.workdir).metrics)[-1]["seconds"] / 60 for each in group]
    devices, cpus = first.environment["devices"], first.environment["cpu_count"]
    return (
        ", ".join(config),
        result["split"],
        ", ".join(decoding),
        ", ".join(str(seed) for seed in sorted(each.config.seed for each in group)),
        *(mean_and_spread([each.result[name] for each in group]) for name in SCORES),
        f"{statistics.mean(minutes):.0f} min",
        ", ".join(sorted({each.commit for each in group})),
        f"{cpus} CPU cores" if set(devices) == {"cpu"} else f"{len(devices)} {devices[0]}",
    )


def show_settings(settings: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [f"{key}={settings[key]}" for key in sorted(keys) if key in settings and key not in IN_EVERY_ROW]


def describe_search(decoding: Mapping[str, Any]) -> str:
    if decoding["strategy"] == "beam":
        return f"beam {decoding['beam_size']}, alpha {decoding['length_penalty']}"
    return decoding["strategy"]


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.report", __doc__)
    parser.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="workdir of a complete, evaluated run")
    parser.add_argument("--readme", metavar="FILE", help="Markdown file to write the table into, between its marks")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
