"""docs/extending.md, run as it stands: its patches apply to the code, and its command trains with the new options."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path("docs/extending.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_page_adds_options_that_train(tmp_path):
    for folder in ("configs", "transformer"):
        shutil.copytree(folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("requirements.txt", tmp_path)
    for patch in blocks("diff"):
        # The page shows neither true line numbers nor counts; git finds the lines by their context.
        subprocess.run(["git", "apply", "--recount", "-"], cwd=tmp_path, input=patch.encode(), check=True)
    (command,) = blocks("sh")
    sizes = ["model.num_layers=1", "model.d_model=8", "model.d_ff=8", "model.num_heads=2", "batch.tokens=1024"]
    sizes += ["data.max_length=80", "training.eval_bleu=false", "checkpoint.best_metric=loss"]
    sizes += ["data.synthetic_examples=200", f"data.cache_dir={tmp_path / 'cache'}"]
    words = [*shlex.split(command.replace("\\\n", ""))[1:], *(f"--config.{size}" for size in sizes)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "runs/options/config.json").read_text())
    assert (config["model"]["activation"], config["model"]["query_key_norm"]) == ("squared_relu", True)
    assert (config["optimizer"]["name"], config["optimizer"]["schedule"]) == ("lion", "polynomial")
    assert (tmp_path / "runs/options/checkpoints/4").is_dir()


def test_the_page_stays_short():
    assert len(PAGE.splitlines()) <= 110
