"""The rows of Table 3: their configurations and trials, and the results of runs or records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from absl import logging

from configs import table3_mini
from configs.table3 import ROWS
from scripts.results.evaluations import differing_keys, run_settings
from scripts.results.records import find_records, read_record_file
from scripts.results.runs import RecordedRun, Run, best_of
from scripts.sweeping.description import Values
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.results import SEED
from transformer.config import loading
from transformer.config.keys import flatten, nearest
from transformer.config.types import Config
from transformer.support.errors import UserError
from transformer.training.state import abstract_init
from transformer.workdir import Workdir


class RowResult(NamedTuple):
    """The best validation of a complete run of a row, by `checkpoint.best_metric`."""

    row: str
    perplexity: float
    bleu: float
    seconds: float


SCALES = {  # the config whose argument is a row, and the rows to train
    "mini": ("configs/table3_mini.py", table3_mini.ROWS),
    "paper": ("configs/table3.py", ROWS),
}


def read_rows(scale: str, names: str | None, overrides: loading.Overrides) -> dict[str, Config]:
    """Returns the configurations of the rows in `names` (None: the scale's), the base first.

    Raises UserError for other rows.
    """
    config, rows = SCALES[scale]
    # Other rows are changes from base, so base is always trained.
    if names is not None:
        rows = names.split(",")
    rows = dict.fromkeys(["base", *rows])  # each once
    for row in rows:
        if row not in ROWS:
            raise UserError(
                f"--rows: there is no row {row}{nearest(row, ROWS)}; the rows are {', '.join(ROWS)}"
            )
    return {row: loading.load_file(f"{config}:{row}", overrides) for row in rows}


def make_trials(configs: Mapping[str, Config], seeds: int) -> list[Values]:
    """Returns the changes from the base row for every row and seed: first all rows with seed 0."""
    return [changes(configs, row) | {SEED: seed} for seed in range(seeds) for row in configs]


def changes(configs: Mapping[str, Config], row: str) -> Values:
    """Returns the keys in which the row differs from the base row."""
    base = flatten(configs["base"])
    return {key: value for key, value in flatten(configs[row]).items() if value != base[key]}


def recorded_rows(configs: Mapping[str, Config], task: Values) -> dict[str, Config]:
    """Returns the configurations of rows with the base row that a sweep has recorded.

    The config file may have changed since.
    """
    # `task` is the record of the base row; rows change it as their configs do now.
    base = configs["base"]
    return {row: loading.with_values(base, task | changes(configs, row)) for row in configs}


def read_table(
    path: Path, configs: Mapping[str, Config]
) -> tuple[dict[str, Config], list[RowResult], int]:
    """Reads the folder of a sweep, or of the records of its runs.

    Returns:
      The configurations of the rows in `configs` as the runs had them, even if the config files
      have changed since; the results of the complete runs; and the number of all runs.

    Raises:
      UserError: the folder holds neither, or records of other runs.
    """
    records = [read_record_file(record) for record in find_records(path)]
    if not records:
        folder = SweepFolder(path)
        sweep = folder.read()
        configs = recorded_rows(configs, sweep["task"])
        return configs, read_results(folder, configs, sweep["trials"]), len(sweep["trials"])

    # Where the records differ, those of the base row have the values of the config file.
    recorded = [run_settings(record.config) for record in records]
    values = flatten(configs["base"])
    varied = differing_keys(recorded)
    for record, settings in zip(records, recorded, strict=True):
        if all(settings[key] == values[key] for key in varied):
            configs = recorded_rows(configs, flatten(record.config))
            break
    results = []
    for record, settings in zip(records, recorded, strict=True):
        rows = [row for row, config in configs.items() if run_settings(config) == settings]
        if not rows:
            raise UserError(f"{record.path}: is of none of the rows {', '.join(configs)}")
        results.append(best_result(rows[0], record))
    return configs, results, len(records)


def best_result(row: str, run: Run) -> RowResult:
    best = best_of(run)
    return RowResult(row, best["perplexity"], best["bleu"], run.training_seconds)


def read_results(
    folder: SweepFolder, configs: Mapping[str, Config], trials: Sequence[Values]
) -> list[RowResult]:
    """Returns the results of the complete runs of a sweep, for the rows in `configs`."""
    # A trial belongs to the row with the same changes from base; seeds do not count.
    rows = {frozenset(changes(configs, row).items()): row for row in configs}

    results = []
    for number, trial in enumerate(trials):
        workdir = Workdir(folder.workdir(number))
        row = rows.get(frozenset((key, value) for key, value in trial.items() if key != SEED))
        if row is None:
            logging.warning(
                "%s: is of none of these rows; add the --config flags that it was made with.",
                workdir.path,
            )
        elif workdir.is_complete():
            results.append(best_result(row, RecordedRun(row, workdir, configs[row])))
    return results


def scores_by_row(results: Sequence[RowResult], measure: str) -> dict[str, list[float]]:
    """Returns the values of `measure`, an attribute of the results, for each row with results."""
    values = {}
    for row in ROWS:
        row_values = [getattr(result, measure) for result in results if result.row == row]
        if row_values:
            values[row] = row_values
    return values


def count_parameters(config: Config) -> int:
    """Returns the number of parameters for a vocabulary of `tokenizer.vocab_size` tokens."""
    # Shapes only: no parameters are allocated.
    vocabulary = config.tokenizer.vocab_size
    _, shapes = abstract_init(config, vocabulary, vocabulary)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))
