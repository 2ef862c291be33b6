import pytest

from scripts.results.evaluations import read_evaluations
from tests.scripts.evaluated import SENTENCES, add_evaluation, make_run
from transformer.workdir import Workdir


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_of_two_equal_evaluations_the_one_with_an_interval_is_read(tmp_path, names):
    workdir = make_run(tmp_path / "run")
    with_interval, without = names
    add_evaluation(workdir, with_interval, SENTENCES, SENTENCES, bleu_interval=[99.0, 100.0])
    add_evaluation(workdir, without, SENTENCES, SENTENCES)
    (evaluation,) = read_evaluations(Workdir(workdir))
    assert evaluation.result["bleu_interval"] == [99.0, 100.0]
