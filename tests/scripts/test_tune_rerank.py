"""scripts.tune_rerank: the best point of the grid, as transformer.evaluate scores it."""

import json
from pathlib import Path

import pytest

from scripts import tune_rerank
from tests.checkpoints.workdirs import make_workdir, run
from transformer import evaluate


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_no_point_of_the_grid_is_better(tmp_path, monkeypatch, capsys, metric):
    workdir, reverse = make_workdir(tmp_path / "forward"), tmp_path / "reverse"
    make_workdir(reverse, seed=1, **{"data.source_language": "out", "data.target_language": "in"})
    monkeypatch.setattr(tune_rerank, "GRID", [0.0, 20.0, 1000.0])
    flags = [f"--workdir={workdir}", "--decoding.beam_size=6"]
    # References that a weight of 1000 finds.
    assert run(evaluate, *flags, "--split=valid", f"--decoding.rerank={reverse}:1000") == 0
    hypotheses = Path(json.loads(capsys.readouterr().out)["hypotheses"])
    (tmp_path / "data" / "valid.out").write_text(hypotheses.read_text())
    assert run(tune_rerank, *flags, f"--rerank={reverse}", f"--metric={metric}") == 0
    tuned = json.loads(capsys.readouterr().out)
    scores = {}
    for weight in tune_rerank.GRID:
        assert run(evaluate, *flags, "--split=valid", f"--decoding.rerank={reverse}:{weight}") == 0
        scores[weight] = json.loads(capsys.readouterr().out)[metric]
    best = max(scores, key=scores.get)
    assert best > 0 and scores[best] > scores[0.0]
    assert tuned == {"rerank": f"{reverse}:{best}", metric: scores[best], "unranked": scores[0.0]}


def test_a_model_is_needed(tmp_path, capsys):
    assert run(tune_rerank, f"--workdir={tmp_path}") == 2
    assert "required: --rerank" in capsys.readouterr().err
