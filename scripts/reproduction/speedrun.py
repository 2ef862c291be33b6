"""The race to a BLEU score: training and test of an entry, its records, and the table of entries.

docs/speedrun.md has the rules.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from transformer.support.environment import REPOSITORY, git
from transformer.support.errors import UserError
from transformer.workdir import Workdir, open_existing

ENTRIES = REPOSITORY / "configs" / "speedrun"
METRIC = "bleu_lowercase_tokenized"
TARGET = 41.0  # of the mean over seeds, on validation
LEVEL = 0.01  # the p-value of an entry is below it
MIN_SEEDS = 5
# The sha256 of the pairs of Multi30k, by `digest_texts`.
DATA = {
    "train": "c1a00bc02ecdb46c6df9032b05537a0f9ccb8f8badf9c27c6d2b5fef14258da4",
    "valid": "2da4aa9f2f00e8aa94e3df29b4669e663fe821b662405a2d9b7fe9ca0ca1f837",
}
# Parameters, vocabulary and scores come from the data and this model only. Early stopping would use
# the validation, which is not timed.
REQUIRED = {
    "training.init_from": "",
    "tokenizer.model_file": "",
    "training.patience": 0,
    "decoding.rerank": "",
    "data.mixture": (),
}
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
    folder = Path(arguments.records) / entry.name
    # Found out before the training, since runs of another time never equal these records.
    if find_records(folder) and not (output / "seed0").exists():
        raise UserError(f"--records={arguments.records}: has {entry.name}; name another folder")

    records = []
    # Trained first, so that both entries are measured within an hour.
    if arguments.beside is not None:
        other = read_entry("--beside", arguments.beside, arguments.overrides)
        records.append(train(other, output / BESIDE, 0, arguments.overrides))
    for seed in range(seeds):
        records.append(train(entry, output / f"seed{seed}", seed, arguments.overrides))

    print(markdown.table([HEADER, make_row(entry.name, records)]), end="")
    files.make_folder(folder, "--records")
    for record in records:
        logging.info("%s", write_record(folder, record.content))


def check_machine() -> None:
    """Raises UserError for compiler flags, devices of no track, and code without a commit."""
    flags = os.environ.get("XLA_FLAGS")
    if flags:
        raise UserError(f"XLA_FLAGS={flags}: an entry has no compiler flags; unset the variable")
    find_track("this machine", {"devices": device_kinds(), "cpu_count": os.cpu_count()})
    changes = git("status", "--porcelain", "--", "transformer", "configs", "scripts")
    if changes is None:
        raise UserError("git status failed: an entry is the code of a commit; run it in a clone")
    if changes:
        names = " ".join(changes.split())
        raise UserError(f"{names}: an entry is the code of a commit; commit these changes first")


def device_kinds() -> list[str]:
    """Returns the kind of each device of this machine, as JAX names it."""
    # A child looks, because JAX would keep a GPU's memory until this process ends.
    code = "import jax; print(*(device.device_kind for device in jax.devices()), sep='\\n')"
    child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    return child.stdout.splitlines()


def read_entry(flag: str, name: str, overrides: loading.Overrides) -> Entry:
    """Reads an entry.

    Raises UserError if it breaks a rule, or its data are not those of the race.
    """
    path = loading.find_file(flag, name)
    if path.resolve().parent != ENTRIES:
        raise UserError(f"{flag}={name}: an entry is a file in {ENTRIES}; add it there")
    free = keys_of(PATH, HOST)
    for key, value in overrides:
        if key not in free:
            raise UserError(
                f"--config.{key}={value}: an entry is a whole config; set the key in a new file "
                "of configs/speedrun"
            )
    config = loading.load_file(str(path), overrides)
    check_config(path, config)
    for split in DATA:
        check_data(f"{path}: config.data", split, digest_texts(open_source(config.data, split)))
    return Entry(path.stem, path, config, loading.call_function(path, "get_average"))


def check_config(path: Path, config: Config) -> None:
    """Raises UserError, which begins with `path`, if the configuration breaks a rule."""
    values = flatten(config)
    for key, required in REQUIRED.items():
        if values[key] != required:
            raise UserError(
                f"{path}: {key}={format_value(values[key])}: must be {required!r} in an entry"
            )
    if not config.training.note:
        raise UserError(f"{path}: training.note is empty; describe the change in it")


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

    Raises UserError for a mean that does not show the target, missing seeds, several or unknown
    commits, uncommitted changes, a configuration or data that break a rule, or devices of no track.
    """
    for record in records:
        check_config(record.path, record.config)
        if "processor" not in record.environment:
            raise UserError(f"{record.path}: has no processor's name; train the run again")
        for split in DATA:
            check_data(str(record.path), split, record.content["data"][split])
    runs = [record for record in records if record.content["name"] != BESIDE]
    seeds = {run.config.seed for run in runs}
    if len(seeds) < MIN_SEEDS:
        raise UserError(
            f"{name}: has records of {len(seeds)} seeds, must have at least {MIN_SEEDS}"
        )
    commits = ", ".join(sorted({short_commit(record.environment) for record in records}))
    # Neither several commits, "unknown", nor the + of uncommitted changes.
    if not re.fullmatch("[0-9a-f]+", commits):
        raise UserError(
            f"{name}: has runs of the code {commits}; an entry is the code of one commit without "
            "changes; train all runs at it in another --output"
        )
    scores = [run.content["evaluations"][0][METRIC] for run in runs]
    mean_score = mean_and_spread(scores)
    mean_minutes = f"{statistics.mean(map(minutes, runs)):.2f}"
    p_value = test_mean(scores).p_above(TARGET)
    if p_value >= LEVEL:
        raise UserError(
            f"{name}: a mean BLEU of {mean_score} after {mean_minutes} minutes does not show "
            f"{TARGET} (p={p_value:.3g}, must be below {LEVEL}), so it is not an entry"
        )
    beside = [f"{minutes(run):.2f}" for run in records if run not in runs]
    return (
        find_track(str(runs[0].path), runs[0].environment),
        name,
        mean_minutes,
        *(beside or [""]),
        mean_score,
        str(len(runs)),
        f"{p_value:.1g}",
        commits,
        runs[0].environment["processor"] or "",
        runs[0].config.training.note,
    )


def minutes(run: RunRecord) -> float:
    """Returns the time that the race counts: the training loop without its validations."""
    return (run.training_seconds - (run.content["validation_seconds"] or 0.0)) / 60


def test_mean(values: Sequence[float]) -> Contrast:
    """Returns the mean of an entry's scores with its standard error, for Student's t-test."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return Contrast(statistics.mean(values), error, len(values) - 1)


def find_track(name: str, environment: Mapping[str, Any]) -> str:
    """Returns the track of these devices. Raises UserError, which begins with `name`, if none."""
    devices = environment["devices"]
    if set(devices) == {"cpu"}:
        if environment["cpu_count"] == 2:
            return "two CPU cores"
    elif len(devices) == 1:
        return f"one {devices[0]}"
    raise UserError(
        f"{name}: has the devices {', '.join(devices)} and {environment['cpu_count']} CPU cores; "
        "the tracks are two CPU cores and one GPU"
    )
