"""Table 3 from records of its runs: the same text and figure as from the sweep's folder."""

from pathlib import Path

import pytest

from configs.table3 import ROWS
from scripts import record, reproduce
from scripts.charts import table3
from scripts.reproduction import rows
from scripts.sweeping import description
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.tasks import TrainingTask
from tests.checkpoints.workdirs import run
from tests.scripts.recorded import complete_run
from tests.scripts.tiny_sweep import error
from transformer.config.keys import flatten
from transformer.support import files

NAMES = "A_h1,D_dropout0"


def override(values: dict) -> dict[str, str]:
    return {key.replace(".", "__"): str(value) for key, value in values.items()}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """Returns the folder of a sweep of three rows with two seeds each, and more steps than now."""
    folder = SweepFolder(tmp_path_factory.mktemp("table3") / "out")
    overrides = [("training.steps", "7000"), ("data.source", "text"), ("data.name", "tiny")]
    overrides.append(("data.path", str(folder.trials / "data")))
    configs = rows.read_rows("mini", NAMES, overrides)
    trials = rows.make_trials(configs, 2)
    described = description.listed(trials, objective="bleu", pruner=None)
    task = TrainingTask(configs["base"], folder)
    folder.path.mkdir()
    files.write_json(folder.record, folder.describe(described, task.identity))
    base = {key: value for key, value in flatten(configs["base"]).items() if value is not None}
    for number, trial in enumerate(trials):
        bleu = 20.0 + number / 7
        complete_run(folder.workdir(number), bleu, evaluate=False, **override(base | trial))
    return folder.path


@pytest.fixture(scope="module")
def records(sweep) -> Path:
    folder = sweep.parent / "records"
    assert run(record, str(sweep), f"--output={folder}") == 0
    return folder


def test_the_tables_are_the_same(sweep, records, capsys):
    names = sorted(path.stem for path in records.iterdir())
    systems = ("d_k=64-d_v=64-num_heads=1-", "dropout=0.0-", "")
    assert names == [f"{system}seed{seed}" for system in systems for seed in (0, 1)]
    texts = []
    for folder in (sweep, records):
        flags = ["--scale=mini", f"--rows={NAMES}", f"--output={folder}", "--report"]
        assert run(reproduce, "table3", *flags) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    # Seeds 0 and 1 of base are the runs 0 and 3, and 7000 are the recorded steps.
    assert "| base | 6 |" in texts[0] and "| 7000 |" in texts[0]
    assert "20.21 ± 0.30" in texts[0] and "6 of 6 runs, 13 minutes of training" in texts[0]
    assert "(D) dropout helps" in texts[0]


def test_records_of_other_runs_are_refused(records, tmp_path, capsys):
    flags = ["--scale=mini", "--rows=A_h1", f"--output={records}", "--report"]
    assert run(reproduce, "table3", *flags) == 2
    assert "dropout=0.0-seed0.json: is of none of the rows base, A_h1" in error(capsys)
    assert run(reproduce, "table3", "--scale=mini", f"--output={tmp_path}", "--report") == 2
    assert f"{tmp_path} is not the folder of a sweep" in error(capsys)


def test_the_figure_is_drawn_from_records(sweep, records):
    scores = table3.read(records)
    for metric, expected in table3.read(sweep).items():
        for row in expected:
            assert scores[metric][row] == pytest.approx(expected[row], rel=5e-6)  # six digits
    assert list(scores["bleu"]) == ["base", "A_h1", "D_dropout0"] and set(scores["bleu"]) < set(
        ROWS
    )
