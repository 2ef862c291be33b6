"""Commands that choose among the hypotheses of a search: in MBR, and as rerankers."""

import sys

import numpy as np
import pytest

import transformer
from tests.checkpoints.workdirs import SOURCES, make_workdir
from transformer.decoding.mbr import chrf
from transformer.support.errors import UserError

TEXTS = [*SOURCES, ""]
# Prints a score of each hypothesis that is not symmetric, and notes each run.
SCORE = """
import sys
open(sys.argv[1], "a").write("ran ")
columns = [open(name).read().split("\\n")[:-1] for name in sys.argv[2:]]
for source, *rest, hypothesis in zip(*columns):
    assert source, "a blank text has nothing to score"
    score = hypothesis.count("3") + len(source.split()) / 7
    print(score - abs(len(rest[0].split()) - 2 * len(hypothesis.split())) if rest else -score)
"""


def command(folder, *fields):
    """Returns the command of a scorer that notes its runs in the file `note` of a folder."""
    (folder / "score.py").write_text(SCORE)
    named = " ".join(f"{{{field}}}" for field in ("source", *fields, "hypothesis"))
    return f"{sys.executable} {folder / 'score.py'} {folder / 'note'} {named}"


def utility(source, reference, hypothesis):
    score = hypothesis.count("3") + len(source.split()) / 7
    return score - abs(len(reference.split()) - 2 * len(hypothesis.split()))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return make_workdir(tmp_path_factory.mktemp("run") / "run")


@pytest.mark.first_case
@pytest.mark.parametrize("strategy", ["mbr", "mbr_beam"])
def test_the_highest_expected_utility_is_chosen_by_one_run_for_all_texts(
    workdir, tmp_path, strategy
):
    note = tmp_path / "note"
    settings = {"beam_size": 6, "mbr_samples": 6}
    model = transformer.load(
        str(workdir),
        strategy=strategy,
        mbr_utility="scorer",
        scorer=command(tmp_path, "reference"),
        **settings,
    )
    assert model.translate([]) == [] and not note.exists()
    found = model.translate(TEXTS, n_best=3)
    assert note.read_text() == "ran "
    with pytest.raises(UserError, match="mbr_utility: cannot be changed in a loaded model"):
        model.with_decoding(strategy="beam")

    # The candidates are the same with chrF, in another order.
    others = transformer.load(str(workdir), strategy=strategy, **settings)
    for text, chosen, row in zip(TEXTS, found, others.translate(TEXTS, n_best=6), strict=True):
        if not text:
            assert [(one.text, one.score) for one in chosen] == [("", 0.0)] * 3
            continue
        texts = [one.text for one in row]
        if strategy == "mbr_beam":
            p = np.exp([one.log_probability for one in row])
            weights = p / p.sum()
        else:
            # Their expected chrF tells how often each was drawn.
            weights = np.linalg.solve(chrf(texts), [one.score for one in row])
            np.testing.assert_allclose(6 * weights, np.rint(6 * weights), atol=1e-2)
        expected = [
            sum(
                w * utility(text, reference, one)
                for reference, w in zip(texts, weights, strict=True)
            )
            for one in texts
        ]
        best = np.array(expected).max()
        assert chosen[0].score == pytest.approx(best, abs=1e-4)
        assert chosen[0].text in texts and chosen[0].score_kind == "expected_scorer"
        scores = [one.score for one in chosen]
        assert scores == sorted(scores, reverse=True)


def test_a_command_reranks_the_hypotheses(workdir, tmp_path):
    note = tmp_path / "note"
    settings = {"beam_size": 6}
    plain = transformer.load(str(workdir), **settings).translate(TEXTS, n_best=6)
    model = transformer.load(str(workdir), rerank="scorer:10", scorer=command(tmp_path), **settings)
    assert model.translate([]) == [] and not note.exists()
    found = model.translate(TEXTS, n_best=2)
    assert note.read_text() == "ran "
    with pytest.raises(UserError, match="scorer: cannot be changed in a loaded model"):
        model.with_decoding(scorer=f"{command(tmp_path)} more")
    for text, chosen, row in zip(TEXTS, found, plain, strict=True):
        if text:
            scores = {
                one.text: one.score - 10 * (one.text.count("3") + len(text.split()) / 7)
                for one in row
            }
            best = sorted(scores, key=lambda one: -scores[one])[:2]
            assert [one.text for one in chosen] == best
            assert chosen[0].score == pytest.approx(scores[best[0]], abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rerank": "scorer:1"}, "give it in decoding.scorer"),
        ({"strategy": "mbr", "mbr_utility": "scorer"}, "give it in decoding.scorer"),
        ({"rerank": "scorer:1", "scorer": "x {reference} {hypothesis}"}, "has {reference}, and"),
        ({"strategy": "mbr", "mbr_utility": "scorer", "scorer": "x"}, "has no {hypothesis}"),
    ],
)
def test_a_scorer_that_cannot_be_used_is_refused(workdir, settings, message):
    with pytest.raises(UserError, match=message):
        transformer.load(str(workdir), beam_size=2, **settings)
