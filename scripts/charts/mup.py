"""Learning-rate curves of models of several widths, from sweeps (docs/scaling.md)."""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import altair as alt

from scripts.charts import theme
from scripts.results.runs import best_validation
from scripts.sweeping.folder import SweepFolder, recorded_sweep
from transformer.run.record import read_record
from transformer.support.errors import UserError
from transformer.training.parameterization import PARAMETERIZATIONS
from transformer.workdir import Workdir

RATE = "optimizer.learning_rate"
HEIGHT = 150


def draw(workdirs: Sequence[str | os.PathLike], columns: int = 2) -> Any:
    """Returns the objective by learning rate, with a curve for each width.

    There is a panel for each parameterization. A point is the mean over seeds of the best
    validation. The best point of each curve is large.

    Args:
      workdirs: folders of sweeps with one objective.

    Raises:
      UserError: a folder is not that of a sweep, the objectives differ, or no trial is complete.
    """
    objective, best, curves = read(list(map(Path, workdirs)))
    records = []
    for (name, width), curve in curves.items():
        optimum = best(curve, key=curve.get)
        for rate, value in curve.items():
            point = {"name": name, "width": width, "rate": rate, "value": value}
            records.append(point | {"is_best": rate == optimum})

    widths = sorted({width for _, width in curves})
    rates = sorted({record["rate"] for record in records})
    axis = alt.Axis(values=rates, format=".1~e", grid=False, labelOverlap=True)
    chart = theme.chart_of(records, height=HEIGHT).encode(
        x=alt.X("rate:Q", title="learning rate", axis=axis).scale(type="log", nice=False),
        y=alt.Y("value:Q", title=objective).scale(zero=False),
        color=theme.categories(alt.Color, "width", widths, theme.CATEGORICAL),
    )
    optima = chart.transform_filter("datum.is_best").mark_point(filled=True, opacity=1)
    layers = alt.layer(chart.mark_line(point={"size": 8}), optima)
    return theme.facets(layers, PARAMETERIZATIONS, columns)


def read(folders: Sequence[Path]) -> tuple[str, Callable, dict[tuple[str, int], dict]]:
    """Returns the objective of sweeps, `max` or `min`, and the curves.

    A curve is a dictionary from learning rates to values, by parameterization and width. Rates with
    a value that is not finite are left out.
    """
    objectives = {}
    values = defaultdict(list)
    for path in folders:
        folder = SweepFolder(path)
        record = folder.read()
        sweep = recorded_sweep(record)
        objectives[sweep.objective] = sweep.best
        for number, trial in enumerate(sweep.trials):
            workdir = Workdir(folder.workdir(number))
            if workdir.is_complete():
                config = record["task"] | trial
                setting = (config["model.parameterization"], config["model.d_model"])
                line = best_validation(read_record(workdir.metrics), sweep.objective)
                values[*setting, config[RATE]].append(line[sweep.objective])

    names = ", ".join(map(str, folders))
    if len(objectives) > 1:
        raise UserError(f"--workdir={names}: have the objectives {', '.join(objectives)}; draw one")
    curves = defaultdict(dict)
    for (name, width, rate), numbers in sorted(values.items()):
        if all(map(math.isfinite, numbers)):
            curves[name, width][rate] = fmean(numbers)
    if not curves:
        raise UserError(f"--workdir={names}: no trial is complete")
    ((objective, best),) = objectives.items()
    return objective, best, curves
