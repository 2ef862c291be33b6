"""The rows of Table 3: their configurations and trials, and the results of complete runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from configs.table3 import ROWS
from scripts.sweeping.description import Values
from scripts.sweeping.folder import Folder
from scripts.sweeping.results import SEED
from transformer.config import loading
from transformer.config.keys import flatten, nearest
from transformer.config_types import Config
from transformer.errors import UserError
from transformer.run.record import read_record
from transformer.training.state import abstract_init
from transformer.workdir import Workdir

EFFECT = 0.5  # BLEU; the base row and rows that differ by more from it have several seeds


class RowResult(NamedTuple):
    """The validation of a complete run of a row at its last step."""

    row: str
    perplexity: float
    bleu: float
    seconds: float


# The config whose argument is a row, and the name of the data that it has without a folder.
SCALES = {"mini": ("configs/table3_mini.py", "multi30k"), "paper": ("configs/table3.py", "wmt14")}


def read_rows(scale: str, data: str | None, names: str | None, overrides: loading.Overrides) -> dict[str, Config]:
    """Returns the configurations of the rows in `names` (None: all), the base first. Raises UserError for others."""
    config, known_data = SCALES[scale]
    rows = list(ROWS) if names is None else list(dict.fromkeys(["base", *names.split(",")]))
    for row in rows:
        if row not in ROWS:
            raise UserError(f"--rows: there is no row {row}{nearest(row, ROWS)}; the rows are {', '.join(ROWS)}")
    if data not in (None, known_data):
        if not Path(data).is_dir():
            raise UserError(f"--data={data}: no such folder; name the folder of the data, or {known_data} to fetch it")
        overrides = [*overrides, ("data.path", data)]
    return {row: loading.load_file(f"{config}:{row}", overrides) for row in rows}


def needs_seeds(row: str) -> bool:
    """Tells whether the row is the base, or its effect in the paper exceeds `EFFECT`."""
    return row == "base" or round(abs(ROWS[row].bleu - ROWS["base"].bleu), 1) > EFFECT


def make_trials(configs: Mapping[str, Config], seeds: int) -> list[Values]:
    """Returns the changes from the base row for every row and seed: all rows with seed 0, then seed 1, and so on."""
    trials = []
    for seed in range(seeds):
        for row in configs:
            if seed == 0 or needs_seeds(row):
                trials.append(changes(configs, row) | {SEED: seed})
    return trials


def changes(configs: Mapping[str, Config], row: str) -> Values:
    """Returns the keys in which the row differs from the base row."""
    base = flatten(configs["base"])
    return {key: value for key, value in flatten(configs[row]).items() if value != base[key]}


def read_results(folder: Folder, configs: Mapping[str, Config], trials: Sequence[Values]) -> list[RowResult]:
    """Returns the results of the complete runs of a sweep with these trials, of the rows in `configs`."""
    by_changes = {frozenset(changes(configs, row).items()): row for row in configs}
    results = []
    for number, trial in enumerate(trials):
        workdir = Workdir(folder.workdir(number))
        row = by_changes.get(frozenset((key, value) for key, value in trial.items() if key != SEED))
        if row and workdir.is_complete():
            lines = read_record(workdir.metrics)
            last = [line for line in lines if line["split"] == "valid"][-1]
            seconds = [line["seconds"] for line in lines if "seconds" in line][-1]
            results.append(RowResult(row, last["perplexity"], last["bleu"], seconds))
    return results


def scores(results: Sequence[RowResult], measure: str) -> dict[str, list[float]]:
    """Returns the values of `measure`, an attribute of the results, for each row that has one."""
    values = {row: [getattr(result, measure) for result in results if result.row == row] for row in ROWS}
    return {row: measured for row, measured in values.items() if measured}


def count_parameters(config: Config) -> int:
    """Returns the number of parameters with a vocabulary of exactly `tokenizer.vocab_size` tokens."""
    vocabulary = config.tokenizer.vocab_size
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_init(config, vocabulary, vocabulary)[1]))
