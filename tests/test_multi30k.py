"""A tenth of the shipped Multi30k run, on the real data."""

import json

import pytest

from tests.test_end_to_end import start


@pytest.mark.slow
def test_a_tenth_of_the_run_translates_captions(multi30k, tmp_path):
    if "fixtures" in multi30k.parts:
        pytest.skip("needs the real files: name their folder by $MULTI30K")
    flags = [f"--config.data.path={multi30k}", f"--config.data.cache_dir={tmp_path / 'cache'}"]
    flags += [
        "--config.training.steps=800",
        "--config.training.eval_every=800",
        "--config.checkpoint.every=800",
    ]
    flags += ["--config.optimizer.warmup_steps=30"]
    done = start("train", "--config=configs/multi30k.py", f"--workdir={tmp_path / 'run'}", *flags)
    assert done.returncode == 0, done.stderr.decode()
    done = start("evaluate", f"--workdir={tmp_path / 'run'}", "--split=valid")
    result = json.loads(done.stdout)
    # A model that copies its input, or always gives the same caption, scores below 5.
    assert result["bleu"] > 20
    assert result["sentences"] == 1014
