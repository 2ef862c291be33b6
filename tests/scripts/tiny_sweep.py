"""Sweep files, and the flags of sweeps whose trials take seconds."""

from pathlib import Path

from tests.training.tiny import flags

HEADER = "import optuna\n\ndef get_sweep(sweep):\n    return "
LISTED = (
    'sweep.listed(sweep.product({{"optimizer.learning_rate": {values}}}), '
    'objective="loss", pruner=None)'
)


def sweep_file(folder: Path, text: str) -> str:
    path = folder / "sweep_file.py"
    path.write_text(HEADER + text + "\n")
    return f"--sweep={path}"


def rates_file(folder: Path, rates: list[float]) -> str:
    """Makes the file of a sweep of fake trials, whose only metric is nll."""
    return sweep_file(folder, LISTED.format(values=rates).replace("loss", "nll"))


def tiny_flags(tmp_path: Path, **changes: object) -> list[str]:
    """Returns the flags of training, without the workdir. `changes` are those of `flags`."""
    given = flags(tmp_path / "run", **{"training__steps": 8} | changes)
    return [flag for flag in given if not flag.startswith("--workdir")]


def error(capsys) -> str:
    """Returns the one line of the error, after which nothing else was printed."""
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert captured.out == "" and "Traceback" not in captured.err
    return line
