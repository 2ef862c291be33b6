"""Models that compile and search independently of a served one."""

import pytest

import transformer
from scripts.serving.controlled import compile_search, control_shapes, separate
from tests.checkpoints.workdirs import make_workdir
from transformer.decoding.control.control import Control
from transformer.support import programs

N_BEST = 2


@pytest.mark.slow
def test_a_separate_model_waits_for_no_lock_and_compiles_one_text_with_its_control(
    tmp_path, monkeypatch
):
    workdir = make_workdir(tmp_path / "run", steps=(10,))
    model = transformer.load(workdir, max_extra_length=30, beam_size=N_BEST)
    control = Control("7", required=[["5 5"]])
    other = separate(model)
    with model._lock:
        compile_search(other, "1 2", control)
        monkeypatch.setattr(programs, "compile_program", None)
        found = other.translate(["1 2"], N_BEST, prefixes=["7"], required=[[["5 5"]]])
    assert len(model.decoder.extra_lengths) == 2 and not model.decoder.programs.compiled
    monkeypatch.undo()
    expected = model.translate(["1 2"], N_BEST, prefixes=["7"], required=[[["5 5"]]])
    assert [best.tokens for best in found[0]] == [best.tokens for best in expected[0]]
    assert control_shapes(model, ["1 2", "3"], [control, Control()]) == [
        (("prefix", (1, 16)), ("required", (1, 2, 2, 4))),
        (),
    ]
