"""The race to a BLEU score: training and test of an entry, its records, and the table of entries.

docs/speedrun.md has the rules.
"""

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import logging

from configs.rules import HOST, PATH
from scripts import markdown
from scripts.reproduction.claims import Contrast
from scripts.results.evaluations import read_evaluation, run_settings, short_commit
from scripts.results.records import (
    RunRecord,
    digest_texts,
    find_records,
    make_record,
    read_record_file,
    write_record,
)
from scripts.results.runs import RecordedRun
from scripts.results.systems import mean_and_spread
from scripts.sweeping import child
from transformer.config import loading
from transformer.config.keys import flatten, format_value, keys_of
from transformer.config.types import Config
from transformer.data.sources.source import open_source
from transformer.support import files
from transformer.support.environment import git
from transformer.support.errors import UserError
from transformer.workdir import Workdir, open_existing

METRIC = "bleu_lowercase_tokenized"
TARGET = 41.0  # of the mean over seeds, on validation
LEVEL = 0.01  # the p-value of an entry is below it
MIN_SEEDS = 5
# The sha256 of the pairs of Multi30k, by `digest_texts`.
DATA = {
    "train": "c1a00bc02ecdb46c6df9032b05537a0f9ccb8f8badf9c27c6d2b5fef14258da4",
    "valid": "2da4aa9f2f00e8aa94e3df29b4669e663fe821b662405a2d9b7fe9ca0ca1f837",
}
# Parameters and vocabulary come from the data only. Early stopping would use the validation, which
# is not timed.
REQUIRED = {"training.init_from": "", "tokenizer.model_file": "", "training.patience": 0}
BESIDE = "beside"  # the record of another entry that was trained beside this one
HEADER = (
    "track",
    "entry",
    "minutes",
    "record beside it",
    "BLEU",
    "seeds",
    "p",
    "commit",
    "processor",
    "what changed",
)


class Entry(NamedTuple):
    """An entry that has been checked. `average` checkpoints are averaged for the evaluation."""

    name: str
    path: Path
    config: Config
    average: int


def main(arguments: argparse.Namespace) -> None:
    for flag in ("entry", "output"):
        if getattr(arguments, flag) is None:
            raise UserError(f"--{flag}: is required (--help lists the flags)")
    seeds = MIN_SEEDS if arguments.seeds is None else arguments.seeds
    if seeds < MIN_SEEDS:
        raise UserError(f"--seeds={seeds}: an entry has at least {MIN_SEEDS} seeds")
    check_machine()
    entry = read_entry("--entry", arguments.entry, arguments.overrides)
    output = Path(arguments.output)
    files.make_folder(output, "--output")

    records = []
    # Trained first, so that both entries are measured within an hour.
    if arguments.beside is not None:
        other = read_entry("--beside", arguments.beside, arguments.overrides)
        records.append(train(other, output / BESIDE, 0, arguments.overrides))
    for seed in range(seeds):
        records.append(train(entry, output / f"seed{seed}", seed, arguments.overrides))
        find_track(records[-1])

    print(markdown.table([HEADER, make_row(entry.name, records)]), end="")
    contrast = test(records)
    p_value = contrast.p_above(TARGET)
    if p_value >= LEVEL:
        raise UserError(
            f"{arguments.entry}: a mean BLEU of {contrast.value:.2f} does not show {TARGET} "
            f"(p={p_value:.3g}, must be below {LEVEL}), so it has no record"
        )
    folder = Path(arguments.records) / entry.name
    files.make_folder(folder, "--records")
    for record in records:
        logging.info("%s", write_record(folder, record.content))


def check_machine() -> None:
    """Raises UserError for compiler flags, and for code that its commit does not have."""
    flags = os.environ.get("XLA_FLAGS")
    if flags:
        raise UserError(f"XLA_FLAGS={flags}: an entry has no compiler flags; unset the variable")
    changes = git("status", "--porcelain", "--", "transformer", "configs")
    if changes:
        names = " ".join(changes.split())
        raise UserError(f"{names}: an entry is the code of a commit; commit these changes first")


def read_entry(flag: str, name: str, overrides: loading.Overrides) -> Entry:
    """Reads an entry.

    Raises UserError if it breaks a rule, or its data are not those of the race.
    """
    path = loading.find_file(flag, name)
    free = keys_of(PATH, HOST)
    for key, value in overrides:
        if key not in free:
            raise UserError(
                f"--config.{key}={value}: an entry is a whole config; set the key in a new file "
                "of configs/speedrun"
            )
    config = loading.load_file(str(path), overrides)
    values = flatten(config)
    for key, required in REQUIRED.items():
        if values[key] != required:
            raise UserError(
                f"{path}: {key}={format_value(values[key])}: must be {required!r} in an entry"
            )
    for split in DATA:
        check_data(f"{path}: config.data", split, digest_texts(open_source(config.data, split)))
    return Entry(path.stem, path, config, loading.call_function(path, "get_average"))


def check_data(name: str, split: str, digest: str) -> None:
    """Raises UserError, which begins with `name`, if a split has other texts than the race."""
    if digest != DATA[split]:
        raise UserError(
            f"{name}: an entry of the race whose data differ: {split} has the digest "
            f"{digest[:8]}, must have {DATA[split][:8]}, all pairs of Multi30k in their order"
        )


def train(entry: Entry, path: Path, seed: int, overrides: loading.Overrides) -> RunRecord:
    """Trains and evaluates a seed, unless it is complete, and returns its record."""
    flags = [f"--config={entry.path}", f"--workdir={path}", f"--config.seed={seed}"]
    flags += [f"--config.{key}={value}" for key, value in overrides]
    log = path.with_suffix(".log")
    logging.info("%s, seed %d: %s has its output.", entry.name, seed, log)
    if not Workdir(path).is_complete():
        child.output_of(entry.name, "transformer.train", flags, log)
    workdir, config = open_existing(path)
    if run_settings(config) != run_settings(entry.config):
        raise UserError(f"{path}: holds a run of another entry; name another --output")
    flags = [
        f"--workdir={path}",
        "--split=valid",
        "--checkpoint=last",
        f"--average={entry.average}",
    ]
    result = json.loads(child.output_of(entry.name, "transformer.evaluate", flags, log))
    evaluation = read_evaluation(
        Path(result["hypotheses"].removesuffix(".hypotheses.txt") + ".json")
    )
    content = make_record(RecordedRun(path.name, workdir, config), path.name, [evaluation])
    return RunRecord(path, config, content)


def make_table(folder: Path) -> str:
    """Returns the table of the entries in the folders of `folder`, by track, the fastest first.

    Raises UserError for a record that breaks a rule.
    """
    rows = []
    for entry in sorted(path for path in folder.iterdir() if path.is_dir()):
        records = [read_record_file(path) for path in find_records(entry)]
        rows.append(make_row(entry.name, records))
    return markdown.table([HEADER, *sorted(rows, key=lambda row: (row[0], float(row[2])))])


def make_row(name: str, records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Returns the cells of an entry in the table.

    Raises UserError for missing seeds, other data, or devices of no track.
    """
    for record in records:
        for split in DATA:
            check_data(str(record.path), split, record.content["data"][split])
    runs = seeds_of(records)
    seeds = {run.config.seed for run in runs}
    if len(seeds) < MIN_SEEDS:
        raise UserError(
            f"{name}: has records of {len(seeds)} seeds, must have at least {MIN_SEEDS}"
        )
    beside = [f"{minutes(run):.2f}" for run in records if run not in runs]
    return (
        find_track(runs[0]),
        name,
        f"{statistics.mean(map(minutes, runs)):.2f}",
        *(beside or [""]),
        mean_and_spread(scores(runs)),
        str(len(runs)),
        f"{test(records).p_above(TARGET):.1g}",
        ", ".join(sorted({short_commit(run.environment) for run in runs})),
        runs[0].environment["processor"] or "",
        runs[0].config.training.note,
    )


def minutes(run: RunRecord) -> float:
    """Returns the time that the race counts: the training loop without its validations."""
    return (run.training_seconds - (run.content["validation_seconds"] or 0.0)) / 60


def seeds_of(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Returns the runs of the entry itself."""
    return [record for record in records if record.content["name"] != BESIDE]


def scores(runs: Sequence[RunRecord]) -> list[float]:
    return [run.content["evaluations"][0][METRIC] for run in runs]


def test(records: Sequence[RunRecord]) -> Contrast:
    """Returns the mean score of an entry with its standard error, for Student's t-test."""
    values = scores(seeds_of(records))
    error = statistics.stdev(values) / len(values) ** 0.5
    return Contrast(statistics.mean(values), error, len(values) - 1)


def find_track(run: RunRecord) -> str:
    """Returns the track of the run's devices. Raises UserError if there is none."""
    environment = run.environment
    devices = environment["devices"]
    if set(devices) == {"cpu"}:
        if environment["cpu_count"] == 2:
            return "two CPU cores"
    elif len(devices) == 1:
        return f"one {devices[0]}"
    raise UserError(
        f"{run.path}: ran on {len(devices)} {devices[0]} with {environment['cpu_count']} CPU "
        "cores; the tracks are two CPU cores and one GPU"
    )
