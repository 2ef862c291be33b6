"""The results of a sweep: a table, `trials.csv`, and the importance of each key."""

import csv
import io
import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import logging
from optuna.trial import FrozenTrial, TrialState

from scripts import markdown
from scripts.results.evaluations import read_result
from scripts.results.systems import describe_checkpoints, describe_search
from scripts.sweeping.description import Sweep
from scripts.sweeping.folder import Folder
from scripts.sweeping.study import SweepStudy, values
from transformer.config.keys import show
from transformer.decoding.bleu import METRICS
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.validation import validation_strategy

SEED = "seed"
INTERACTIONS = "interactions"
FOREST_TRIALS = 20  # of fewer trials a forest cannot tell the keys apart


def publish(study: SweepStudy, folder: Folder, readme: str | None) -> None:
    """Writes `trials.csv` and publishes the table. Raises UserError if no trial is complete."""
    trials = study.trials()
    sweep = study.sweep
    source = folder.read()["task"].get("from")
    workdirs = [
        folder.workdir(number) if source is None else Path(source) for number in range(len(trials))
    ]
    files.write_text(folder.table, make_csv(trials, sweep, workdirs))
    logging.info("%s", summary(trials, sweep))
    if not (complete := completed(trials)):
        raise UserError(
            f"{folder.path}: no trial is complete; {folder.logs} has the output of each"
        )
    if effects := importances(study):
        listed = ", ".join(f"{key} {100 * importance:.3g}%" for key, importance in effects.items())
        importance = f"Importance for {sweep.objective} (fANOVA main effects): {listed}."
    else:
        importance = (
            f"No importance for {sweep.objective}: it needs a complete grid in which the objective differs, "
            f"or {FOREST_TRIALS} complete trials of a search."
        )
    notes = filter(
        None, [describe_decoding(folder, sweep, complete[0].user_attrs["trial"]), importance]
    )
    markdown.publish(markdown.table(make_table(trials, sweep), notes), "sweep", readme)


def completed(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    return [trial for trial in trials if trial.state == TrialState.COMPLETE]


def summary(trials: Sequence[FrozenTrial], sweep: Sweep) -> str:
    """Returns the number of trials in each state, and the best so far, in one line."""
    counts = Counter(trial.state.name.lower() for trial in trials)
    parts = [f"{counts['complete']} of {len(trials)} trials complete"]
    parts += [
        f"{counts['running']} running",
        f"{counts['pruned']} pruned",
        f"{counts['fail']} failed",
    ]
    if complete := completed(trials):
        best = sweep.best(complete, key=lambda trial: trial.value)
        parts.append(f"best {sweep.objective} {best.value:.4g} (trial {best.user_attrs['trial']})")
    return ", ".join(parts)


def make_csv(trials: Sequence[FrozenTrial], sweep: Sweep, workdirs: Sequence[Path]) -> str:
    """Returns a line a trial: its number, state, objective, varied keys, workdir, and the last
    attempt's seconds.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["number", "state", sweep.objective, *sweep.keys, "workdir", "seconds"])
    for number, (trial, workdir) in enumerate(zip(trials, workdirs, strict=True)):
        varied = [values(trial).get(key, "") for key in sweep.keys]
        seconds = round(trial.duration.total_seconds(), 1) if trial.duration else ""
        writer.writerow([number, trial.state.name.lower(), trial.value, *varied, workdir, seconds])
    return text.getvalue()


def make_table(trials: Sequence[FrozenTrial], sweep: Sweep) -> list[tuple[str, ...]]:
    """Returns a header and the rows, best first, incomplete ones last.

    Seeds are one row: mean and deviation.
    """
    keys = [key for key in sweep.keys if key != SEED]
    groups = defaultdict(list)
    for trial in trials:
        groups[tuple(values(trial).get(key) for key in keys)].append(trial)
    rows = []
    for setting, group in groups.items():
        if not (complete := completed(group)):
            continue
        objective = [trial.value for trial in complete]
        mean = statistics.mean(objective)
        seeds = {values(trial).get(SEED) for trial in complete}  # a search may repeat a setting
        deviation = f" ± {statistics.stdev(objective):.2g}" if len(seeds) > 1 else ""
        numbers = ", ".join(str(trial.user_attrs["trial"]) for trial in complete)
        if is_partial := len(complete) < len(group):
            numbers += f" ({len(complete)} of {len(group)})"
        shown = ["" if value is None else show_value(value) for value in setting]
        order = (is_partial, -mean if sweep.direction == "maximize" else mean)
        rows.append((order, (f"{mean:.4g}{deviation}", *shown, numbers)))
    return [
        (sweep.objective, *keys, "trials"),
        *(row for _, row in sorted(rows, key=lambda row: row[0])),
    ]


def describe_decoding(folder: Folder, sweep: Sweep, trial: int) -> str:
    """Returns the text and the search behind an objective that scores translations; empty for other
    objectives.
    """
    varied = dict.fromkeys(sweep.keys, "(varied)")
    task = folder.read()["task"]
    if "from" in task:
        result = read_result(folder.result(trial))
        search = result["decoding"] | {
            key.removeprefix("decoding."): text for key, text in varied.items()
        }
        sentences = result["sentences"]
        checkpoint = describe_checkpoints([result["step"]], result["averaged"])
    # as transformer/training/validation.py decodes
    elif sweep.objective.partition("/")[0] in METRICS:
        config = task | varied
        strategy = varied.get("decoding.strategy") or validation_strategy(
            config["decoding.strategy"]
        )
        search = {"strategy": strategy, "beam_size": config["training.eval_beam_size"]}
        search |= {
            key: config[f"decoding.{key}"] for key in ("length_penalty", "length_penalty_form")
        }
        first = config["training.eval_sentences"]
        sentences = f"the first {first}" if first else "all"
        checkpoint = "best validation of each trial"
    else:
        return ""
    return (
        f"{sweep.objective}: valid, {sentences} sentences; {describe_search(search)}, {checkpoint}."
    )


def importances(study: SweepStudy) -> dict[str, float]:
    """Returns the fANOVA importance of each key (Hutter et al. 2014): main effects.

    For a complete grid they are exact fractions of the variance, and `INTERACTIONS` has the rest.
    Those of a search are estimated by Optuna's forest from `FOREST_TRIALS` complete trials on, and
    sum to 1. Empty for other sweeps, or if the objective or all keys have only one value.
    """
    complete = completed(study.trials())
    common = [key for key in study.sweep.keys if all(key in trial.params for trial in complete)]
    varied = [key for key in common if len({trial.params[key] for trial in complete}) > 1]
    if len({trial.value for trial in complete}) < 2 or not varied:
        return {}
    axes = [list(dict.fromkeys(trial.params[key] for trial in complete)) for key in varied]
    cells = {tuple(trial.params[key] for key in varied): trial.value for trial in complete}
    if len(cells) == len(complete) == math.prod(map(len, axes)):
        means = np.array([cells[cell] for cell in itertools.product(*axes)]).reshape(
            [len(axis) for axis in axes]
        )
        return _grid_importances(varied, means)
    if len(complete) < FOREST_TRIALS or not study.sweep.space:
        return {}
    # imports sklearn, which takes long
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    return get_param_importances(
        study.load(), evaluator=FanovaImportanceEvaluator(seed=0), params=varied
    )


def _grid_importances(keys: Sequence[str], objective: np.ndarray) -> dict[str, float]:
    """Returns the fraction of the variance of a complete grid, with an axis for each key, that is
    its main effect.
    """
    axes = range(len(keys))
    means = [objective.mean(tuple(axis for axis in axes if axis != kept)) for kept in axes]
    main = {key: float(mean.var() / objective.var()) for key, mean in zip(keys, means, strict=True)}
    interactions = {INTERACTIONS: max(0.0, 1 - sum(main.values()))} if len(keys) > 1 else {}
    return dict(sorted(main.items(), key=lambda item: -item[1])) | interactions


def show_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else show(value)
