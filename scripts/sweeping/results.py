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
from scripts.results.evaluation_files import read_result
from scripts.results.systems import describe_checkpoints, describe_search
from scripts.sweeping.description import Sweep
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.study import SweepStudy, values
from transformer.config.keys import format_value
from transformer.decoding.metrics import METRICS
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.validation import validation_strategy

SEED = "seed"
INTERACTIONS = "interactions"
# With fewer trials a forest cannot separate the effects of the keys.
FOREST_TRIALS = 20


def publish(study: SweepStudy, folder: SweepFolder, readme: str | None) -> None:
    """Writes `trials.csv` and publishes the table. Raises UserError if no trial is complete."""
    trials = study.trials()
    sweep = study.sweep
    source = folder.read()["task"].get("from")
    if source is None:
        workdirs = [folder.workdir(number) for number in range(len(trials))]
    else:
        workdirs = [Path(source)] * len(trials)

    # Every report rewrites the file, also of a sweep without a complete trial.
    files.write_text(folder.table, make_csv(trials, sweep, workdirs))
    logging.info("%s", summary(trials, sweep))
    complete = completed(trials)
    if not complete:
        raise UserError(
            f"{folder.path}: no trial is complete; {folder.logs} has the output of each"
        )

    effects = importances(study)
    if effects:
        percentages = [f"{key} {100 * effect:.3g}%" for key, effect in effects.items()]
        importance = (
            f"Importance for {sweep.objective} (fANOVA main effects): {', '.join(percentages)}."
        )
    else:
        importance = (
            f"No importance for {sweep.objective}: it needs a complete grid in which the "
            f"objective differs, or {FOREST_TRIALS} complete trials of a search."
        )
    decoding = describe_decoding(folder, sweep, complete[0].user_attrs["trial"])
    notes = [decoding, importance] if decoding else [importance]
    markdown.publish(markdown.table(make_table(trials, sweep), notes), "sweep", readme)


def completed(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    return [trial for trial in trials if trial.state == TrialState.COMPLETE]


def summary(trials: Sequence[FrozenTrial], sweep: Sweep) -> str:
    """Returns the number of trials in each state, and the best trial so far, in one line."""
    counts = Counter(trial.state.name.lower() for trial in trials)
    parts = [
        f"{counts['complete']} of {len(trials)} trials complete",
        f"{counts['running']} running",
        f"{counts['pruned']} pruned",
        f"{counts['fail']} failed",
    ]

    best = sweep.best(completed(trials), key=lambda trial: trial.value, default=None)
    if best is not None:
        parts.append(f"best {sweep.objective} {best.value:.4g} (trial {best.user_attrs['trial']})")
    return ", ".join(parts)


def make_csv(trials: Sequence[FrozenTrial], sweep: Sweep, workdirs: Sequence[Path]) -> str:
    """Returns a CSV with one line for each trial. `seconds` is the time of the last attempt."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["number", "state", sweep.objective, *sweep.keys, "workdir", "seconds"])
    for number, (trial, workdir) in enumerate(zip(trials, workdirs, strict=True)):
        state = trial.state.name.lower()
        varied = [values(trial).get(key, "") for key in sweep.keys]
        seconds = round(trial.duration.total_seconds(), 1) if trial.duration else ""
        writer.writerow([number, state, trial.value, *varied, workdir, seconds])
    return text.getvalue()


def make_table(trials: Sequence[FrozenTrial], sweep: Sweep) -> list[tuple[str, ...]]:
    """Returns a header and the rows, best first, and settings with incomplete trials last.

    Trials that differ only in their seed share a row, with the mean and the standard deviation.
    """
    keys = [key for key in sweep.keys if key != SEED]
    groups = defaultdict(list)
    for trial in trials:
        groups[tuple(values(trial).get(key) for key in keys)].append(trial)

    rows = []
    for setting, group in groups.items():
        complete = completed(group)
        if not complete:
            continue

        objective = [trial.value for trial in complete]
        mean = statistics.mean(objective)

        # A search may repeat a setting with the same seed.
        seeds = {values(trial).get(SEED) for trial in complete}
        deviation = f" ± {statistics.stdev(objective):.2g}" if len(seeds) > 1 else ""

        numbers = ", ".join(str(trial.user_attrs["trial"]) for trial in complete)
        is_partial = len(complete) < len(group)
        if is_partial:
            numbers += f" ({len(complete)} of {len(group)})"

        texts = ["" if value is None else show_value(value) for value in setting]
        order = (is_partial, -mean if sweep.direction == "maximize" else mean)
        rows.append((order, (f"{mean:.4g}{deviation}", *texts, numbers)))
    rows.sort(key=lambda row: row[0])
    return [(sweep.objective, *keys, "trials"), *(row for _, row in rows)]


def describe_decoding(folder: SweepFolder, sweep: Sweep, trial: int) -> str:
    """Returns the sentences, the search and the checkpoint behind scores of translations.

    Returns "" if the objective does not score translations.
    """
    varied = dict.fromkeys(sweep.keys, "(varied)")
    task = folder.read()["task"]
    if "from" in task:
        result = read_result(folder.result(trial))
        search = dict(result["decoding"])
        for key, text in varied.items():
            search[key.removeprefix("decoding.")] = text
        sentences = result["sentences"]
        checkpoint = describe_checkpoints([result["step"]], result["averaged"])
    elif sweep.objective.partition("/")[0] in METRICS:
        # The search of transformer/training/validation.py.
        config = task | varied
        strategy = varied.get("decoding.strategy")
        search = {
            "strategy": strategy or validation_strategy(config["decoding.strategy"]),
            "beam_size": config["training.eval_beam_size"],
            "length_penalty": config["decoding.length_penalty"],
            "length_penalty_form": config["decoding.length_penalty_form"],
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

    In a complete grid they are exact fractions of the variance, and `INTERACTIONS` has the rest. In
    a search with at least `FOREST_TRIALS` complete trials, Optuna's forest estimates them, and they
    sum to 1. The result is empty for other sweeps, and if the objective or all keys have only one
    value.
    """
    complete = completed(study.trials())
    common = [key for key in study.sweep.keys if all(key in trial.params for trial in complete)]
    varied = [key for key in common if len({trial.params[key] for trial in complete}) > 1]
    if len({trial.value for trial in complete}) < 2 or not varied:
        return {}

    # A complete grid has one trial for each combination of values.
    axes = [list(dict.fromkeys(trial.params[key] for trial in complete)) for key in varied]
    shape = [len(axis) for axis in axes]
    objectives = {tuple(trial.params[key] for key in varied): trial.value for trial in complete}
    if len(objectives) == len(complete) == math.prod(shape):
        grid = np.array([objectives[setting] for setting in itertools.product(*axes)])
        return _grid_importances(varied, grid.reshape(shape))  # one axis for each key

    # A forest can also use an incomplete sample of the space.
    if len(complete) < FOREST_TRIALS or not study.sweep.space:
        return {}

    # imports sklearn, which takes long
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    evaluator = FanovaImportanceEvaluator(seed=0)
    return get_param_importances(study.load(), evaluator=evaluator, params=varied)


def _grid_importances(keys: Sequence[str], objective: np.ndarray) -> dict[str, float]:
    """Returns the main effect of each key, as a fraction of the variance of the objective.

    `objective` is a complete grid with one axis for each key.
    """
    main = {}
    for axis, key in enumerate(keys):
        # The mean over all other axes, as a function of this key.
        rest = tuple(other for other in range(len(keys)) if other != axis)
        main[key] = float(objective.mean(rest).var() / objective.var())
    effects = dict(sorted(main.items(), key=lambda item: -item[1]))
    if len(keys) > 1:
        effects[INTERACTIONS] = max(0.0, 1 - sum(main.values()))
    return effects


def show_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else format_value(value)
