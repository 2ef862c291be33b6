"""The command `scripts.candidates`: as many candidates of each source, their rewards, and a run on
them.
"""

import json
import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from sacrebleu.metrics import CHRF

import transformer
from scripts import candidates
from scripts.corpora import translator
from scripts.corpora.candidates import make_groups, write_rewards
from tests.checkpoints.saved_runs import read_run
from tests.checkpoints.workdirs import REFERENCES, SETTINGS, SOURCES, make_workdir, run
from tests.training.tiny import at_step, record
from transformer import train
from transformer.config import cli

SIZE = 3
SAMPLES = ["--decoding.strategy=sample", "--n_best=6", f"--candidates={SIZE}"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    return make_workdir(tmp_path_factory.mktemp("runs") / "parent")


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def make(workdir: Path, output: Path, *flags: str) -> int:
    return run(candidates, f"--workdir={workdir}", f"--output={output}", *SAMPLES, *flags)


@pytest.fixture(scope="module")
def made(workdir, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("made") / "candidates"
    assert make(workdir, output, "--reward=chrf,bleu,constant,random") == 0
    return output


def test_each_source_has_its_reference_and_different_samples(made):
    sources, targets = lines_of(made / "train.in"), lines_of(made / "train.out")
    assert sources == [source for source in SOURCES for _ in range(SIZE)]
    groups = np.reshape(targets, (-1, SIZE)).tolist()
    assert [group[0] for group in groups] == REFERENCES
    assert all(len(set(group)) == SIZE for group in groups)
    facts = json.loads((made / "data.json").read_text())
    assert (facts["candidates"], facts["sources"], facts["left_out"]) == (SIZE, len(SOURCES), 0)
    assert facts["rewards"] == ["bleu", "chrf", "constant", "random"]


def test_the_reward_is_the_sentence_score(made):
    references = [reference for reference in REFERENCES for _ in range(SIZE)]
    pairs = zip(lines_of(made / "train.out"), references, strict=True)
    expected = [CHRF().sentence_score(text, [reference]).score / 100 for text, reference in pairs]
    rewards = [*map(float, lines_of(made / "chrf.rewards"))]
    np.testing.assert_allclose(rewards, expected, atol=1e-6)
    assert rewards[::SIZE] == [1.0] * len(SOURCES)
    bleu = [*map(float, lines_of(made / "bleu.rewards"))]
    # "6" has one token, which would have a score of 0 without the effective order
    assert bleu[::SIZE] == [1.0] * len(SOURCES) and max(bleu) <= 1.0
    assert set(lines_of(made / "constant.rewards")) == {"0"}
    assert len(set(lines_of(made / "random.rewards"))) > SIZE


def test_candidates_are_repeated_if_there_are_too_few():
    translations = [["b", "a", "", "c ", "d"], ["a"], ["a", "", "b"]]
    groups = make_groups(["1", "2", "3"], ["a", "a", ""], translations, 3)
    assert groups == [["a", "b", "c"], [], ["a", "b", "a"]]


def test_a_source_is_not_in_two_groups_in_succession():
    # The second group of "1" follows the first one, since "2" has only one candidate.
    sources = ["1", "2", "1", "3", "1"]
    groups = make_groups(sources, ["a"] * 5, [["b"], ["a"], ["c"], ["b"], ["c"]], 2)
    assert groups == [["a", "b"], [], [], ["a", "b"], ["a", "c"]]


def test_the_candidates_of_other_sources_are_kept(workdir, made, tmp_path, capsys):
    # As many bytes as before, so that the shards look the same.
    text = tmp_path / "text"
    text.mkdir()
    (text / "train.in").write_text("".join(f"{line}\n" for line in reversed(SOURCES)))
    (text / "train.out").write_text("".join(f"{line}\n" for line in reversed(REFERENCES)))
    before = (made / "train.out").read_bytes()
    assert make(workdir, made, f"--text={text}") == 2
    assert f"--output={made}: has candidates of other sources" in capsys.readouterr().err
    assert (made / "train.out").read_bytes() == before


def test_a_killed_command_continues_and_adds_rewards(workdir, made, tmp_path, capsys, monkeypatch):
    output = tmp_path / "candidates"
    monkeypatch.setattr("scripts.corpora.shards.SHARD_LINES", 2)
    translate = translator.Translator.translate

    def kill(self, shard):
        if shard.number == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return translate(self, shard)

    with monkeypatch.context() as patch:
        patch.setattr(translator.Translator, "translate", kill)
        assert make(workdir, output) == 130
    assert not (output / "train.out").exists()
    assert make(workdir, output, "--shard=2/3") == 0
    assert json.loads(capsys.readouterr().out)["lines"] == 2
    assert not (output / "train.out").exists()
    assert make(workdir, output) == 0
    capsys.readouterr()
    command = f"{sys.executable} -c 'for line in open(\"{{hypothesis}}\"): print(len(line))'"
    assert make(workdir, output, f"--scorer=length,lower:{command}") == 0
    assert json.loads(capsys.readouterr().out)["rewards"] == ["chrf", "length"]
    for name in ("train.in", "train.out", "chrf.rewards"):
        assert (output / name).read_bytes() == (made / name).read_bytes()
    lengths = [-len(line) - 1 for line in lines_of(output / "train.out")]
    assert [*map(float, lines_of(output / "length.rewards"))] == lengths

    # Other candidates need other rewards.
    assert make(workdir, output, "--without_reference", "--reward=bleu") == 0
    assert sorted(path.name for path in output.glob("*.rewards")) == ["bleu.rewards"]


@pytest.mark.parametrize("name", ["train.in", "comet.rewards", "data.json"])
def test_files_of_another_program_are_not_overwritten(workdir, tmp_path, capsys, name):
    (tmp_path / name).write_text("own")
    assert make(workdir, tmp_path) == 2
    assert f"has {name} of another program" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "own" and len([*tmp_path.iterdir()]) == 1


def test_small_rewards_keep_their_digits(tmp_path):
    write_rewards(tmp_path, "small", [1.5e-8, -2.0])
    assert [*map(float, lines_of(tmp_path / "small.rewards"))] == [1.5e-8, -2.0]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--reward=rouge", "--reward=rouge: must be among chrf, bleu, constant, random"),
        ("--candidates=1", "must be at least 2"),
        ("--text=missing", "data.path=missing: no such folder"),
        ("--scorer=x:true", "x=true: has no {hypothesis}"),
        ("--scorer=random:true {hypothesis}", "--scorer=random: is a reward here"),
    ],
)
def test_unusable_flags_are_named(workdir, tmp_path, flag, message, capsys):
    flags = [*SAMPLES[:2], flag]
    assert run(candidates, f"--workdir={workdir}", f"--output={tmp_path / 'new'}", *flags) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def train_on(made: Path, parent: Path, workdir: Path, **changes: str) -> int:
    """Trains from the parent on candidates and returns the exit code."""
    settings = SETTINGS | {
        "data.path": str(parent.parent / "data"),
        "data.cache_dir": str(workdir.parent / "cache"),
        "data.max_length": "16",
        "data.workers": "1",
        "data.mixture": f"('path={made} rewards=chrf.rewards',)",
        "batch.plan": "groups",
        "batch.candidates": str(SIZE),
        "batch.row_multiple": "1",
        "batch.tokens": "96",
        "batch.max_buckets": "1",
        "optimizer.warmup_steps": "2",
        "training.candidate_loss": "minimum_risk",
        "training.risk_sharpness": "1",
        "training.init_from": str(parent),
        "training.steps": "8",
        "training.log_every": "2",
        "training.eval_every": "4",
        "training.eval_bleu": "false",
        "checkpoint.best_metric": "loss",
        "checkpoint.every": "3",
        "optimizer.learning_rate": "0.3",
    }
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    flags = [f"--config.{key}={value}" for key, value in settings.items()]
    flags = ["--config=configs/base.py", f"--workdir={workdir}", *flags]
    return cli.execute(train.make_parser(), train.main, flags)


@pytest.mark.slow
def test_a_run_on_candidates_resumes_bit_for_bit(made, workdir, tmp_path, monkeypatch):
    assert train_on(made, workdir, tmp_path / "whole") == 0

    def crash():
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        at_step(patch, 5, crash)
        assert train_on(made, workdir, tmp_path / "run") == 1
    assert train_on(made, workdir, tmp_path / "run") == 0
    assert record(tmp_path / "run") == record(tmp_path / "whole")
    (parameters, _), (expected, _) = (
        read_run(tmp_path / name, "last") for name in ("run", "whole")
    )
    jax.tree.map(np.testing.assert_array_equal, parameters, expected)
    before = expected_reward(made, workdir, "best")
    after = expected_reward(made, tmp_path / "run", "last")
    assert after > before + 0.1


def expected_reward(made: Path, workdir: Path, checkpoint: str) -> float:
    """Returns the mean reward of the candidates by their probabilities under a model."""
    pairs = zip(lines_of(made / "train.in"), lines_of(made / "train.out"), strict=True)
    scores = transformer.load(workdir, checkpoint).score(list(pairs))
    log_p = np.reshape([score.log_probability for score in scores], (-1, SIZE))
    p = np.exp(log_p - log_p.max(axis=1, keepdims=True))
    rewards = np.reshape([*map(float, lines_of(made / "chrf.rewards"))], (-1, SIZE))
    return float(np.mean((p * rewards).sum(axis=1) / p.sum(axis=1)))
