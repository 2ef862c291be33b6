"""What came of a sweep: its best trials, a table, `trials.csv`, and how much each key matters."""

import csv
import io
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import optuna
from optuna.importance import FanovaImportanceEvaluator

from scripts.sweeping.description import Sweep, Values
from scripts.sweeping.ledger import Ledger, Standing
from transformer.config.keys import show

SEED = "seed"


def best(standings: Sequence[Standing], sweep: Sweep) -> int | None:
    """The number of the trial with the best value of those that are complete; None if none is."""
    complete = [trial for trial, standing in enumerate(standings) if standing.state == "complete"]
    return sweep.best(complete, key=lambda trial: standings[trial].value, default=None)


def summary(standings: Sequence[Standing], sweep: Sweep, slots: int) -> str:
    """How many trials are done, running, pruned, failed, and to come; the best so far; the time that is left."""
    counts = Counter(standing.state for standing in standings)
    to_come = counts["waiting"] + counts["missing"]
    parts = [f"{counts['complete']} of {len(standings)} trials done"]
    parts += [f"{counts[state]} {state}" for state in ("running", "pruned", "failed")]
    if (found := best(standings, sweep)) is not None:
        parts.append(f"best {sweep.objective} {standings[found].value:.4g} (trial {found})")
    ended = [standing.seconds for standing in standings if standing.state in ("complete", "pruned")]
    if ended and (to_come or counts["running"]):
        rounds = (to_come + counts["running"] / 2) / max(slots, counts["running"])
        parts.append(f"about {timedelta(seconds=round(rounds * sum(ended) / len(ended)))} left")
    return "  ".join(parts)


def make_csv(standings: Sequence[Standing], sweep: Sweep, workdirs: Sequence[Path]) -> str:
    """A line a trial: its number, state, objective, every varied key, workdir, and seconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["number", "state", sweep.objective, *sweep.keys, "workdir", "seconds"])
    for trial, (standing, workdir) in enumerate(zip(standings, workdirs, strict=True)):
        values = [standing.values.get(key, "") for key in sweep.keys]
        value = "" if standing.value is None else standing.value
        writer.writerow([trial, standing.state, value, *values, workdir, round(standing.seconds, 1)])
    return text.getvalue()


def make_table(standings: Sequence[Standing], sweep: Sweep) -> list[tuple[str, ...]]:
    """Header and rows, the best first: trials that differ in their seed alone are one row, with mean and deviation.

    Rows of which a seed is not complete come last: as a rule those are lost, by pruning or failing, that would have
    been the worst.
    """
    keys = [key for key in sweep.keys if key != SEED]
    groups: dict[tuple, list[int]] = defaultdict(list)
    for trial, standing in enumerate(standings):
        groups[tuple(standing.values.get(key) for key in keys)].append(trial)
    sign = -1 if sweep.direction == "maximize" else 1
    rows = []
    for values, trials in groups.items():
        complete = [trial for trial in trials if standings[trial].state == "complete"]
        if not complete:
            continue
        found = [standings[trial].value for trial in complete]
        mean, missing = statistics.mean(found), len(trials) - len(complete)
        spread = f" ± {statistics.stdev(found):.2g}" if len(found) > 1 else ""
        shown = ["" if value is None else show_short(value) for value in values]
        numbers = ", ".join(map(str, complete)) + (f" ({len(complete)} of {len(trials)})" if missing else "")
        rows.append((missing > 0, sign * mean, (f"{mean:.4g}{spread}", *shown, numbers)))
    return [(sweep.objective, *keys, "trials"), *(row for *_, row in sorted(rows, key=lambda row: row[:2]))]


def importances(ledger: Ledger) -> dict[str, float]:
    """The share of each key in the objective's variance, by a functional ANOVA (Hutter et al. 2014), Optuna's.

    Empty if fewer than two complete trials differ, in values or in keys that all of them have.
    """
    complete = [standing for standing in ledger.standings() if standing.state == "complete"]
    if len({standing.value for standing in complete}) < 2:
        return {}
    common = set.intersection(*(set(standing.values) for standing in complete))
    varied = [key for key in ledger.sweep.keys if key in common and len({each.values[key] for each in complete}) > 1]
    if not varied:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.importance.get_param_importances(
            ledger.study, evaluator=FanovaImportanceEvaluator(seed=0), params=varied
        )


def described(values: Values) -> str:
    return ", ".join(f"{key}={show_short(value)}" for key, value in values.items())


def show_short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else show(value)
