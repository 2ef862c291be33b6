"""The worked example of docs/sequences.md, word for word but with fewer steps."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from transformer import evaluate, train
from transformer.config import cli


@pytest.mark.slow
def test_the_example_of_integer_sequences_runs(tmp_path, capsys):
    (script,) = re.findall(
        r"^```bash\n(.*?)^```$", Path("docs/sequences.md").read_text(), re.MULTILINE | re.DOTALL
    )
    script = script.replace("python -", f"{sys.executable} -")
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    melodies, ordered = (
        [
            list(map(int, line.split()))
            for line in (tmp_path / f"runs/melodies/test.{ending}").read_text().splitlines()
        ]
        for ending in ("melody", "sorted")
    )
    assert len(melodies) == 300 and list(map(sorted, melodies)) == ordered
    # unoptimized programs translate slowly
    for path in (tmp_path / "runs" / "melodies").glob("*[dt].*"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:24]))
    settings = {"data.path": tmp_path / "runs" / "melodies", "data.cache_dir": tmp_path / "cache"}
    settings |= {"training.steps": 8, "training.eval_every": 8, "training.eval_bleu": "false"}
    settings |= {"checkpoint.best_metric": "loss", "optimizer.warmup_steps": 2}
    settings |= {"batch.max_buckets": 1, "batch.tokens": 512, "model.num_layers": 1}
    flags = [f"--config.{key}={value}" for key, value in settings.items()]
    argv = ["--config=configs/sequences.py", f"--workdir={tmp_path / 'run'}", *flags]
    assert cli.execute(train.make_parser(), train.main, argv) == 0
    argv = [
        f"--workdir={tmp_path / 'run'}",
        "--decoding.max_extra_length=4",
        "--decoding.beam_size=1",
    ]
    assert cli.execute(evaluate.make_parser(), evaluate.main, argv) == 0
    assert 0.0 <= json.loads(capsys.readouterr().out)["exact_match"] <= 1.0
