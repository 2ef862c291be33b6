"""The command `scripts.shortlist`, and the commands that decode with what it has learned."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array

import transformer
from scripts import shortlist
from scripts.alignment import translations as learning
from tests.checkpoints.workdirs import REFERENCES, SOURCES, make_workdir, run
from transformer import evaluate, translate
from transformer.config import loading
from transformer.data.corpus import corpus
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.shortlist import Shortlist
from transformer.support.special_tokens import EOS
from transformer.workdir import Workdir


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return make_workdir(folder / "run", **{"data.cache_dir": str(folder / "cache")})


@pytest.fixture(scope="module")
def learned(workdir) -> Shortlist:
    """Returns what the command learns with two frequent tokens, which are a small part of even this
    vocabulary.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "FREQUENT", 2)
        assert run(shortlist, f"--workdir={workdir}") == 0
    return Shortlist.load(
        Workdir(workdir).shortlist, Tokenizer.load(workdir, loading.load(workdir)), 64
    )


def errors(capsys, module, *flags: str) -> str:
    capsys.readouterr()
    assert run(module, *flags) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


def test_the_file_has_the_translations_and_frequent_tokens_of_the_corpus(learned):
    # The target is the source backwards, and number n is token n + 4.
    assert learned.translations[[5, 10, 11], 0].tolist() == [5, 10, 11]
    # 1 occurs beside 2 and 3, and beside 7
    assert set(learned.translations[5].tolist()) == {5, 6, 7, 11, -1}
    assert (learned.translations[:3] == -1).all()
    assert learned.frequent.tolist() == [11, 5]  # 7 occurs three times, 0 never, all others twice


def test_the_log_has_the_coverage_of_the_validation_split(tmp_path, capsys):
    workdir = make_workdir(tmp_path / "run", **{"data.cache_dir": str(tmp_path / "cache")})
    assert run(shortlist, f"--workdir={workdir}", "--pairs=3") == 0
    out, log = capsys.readouterr()
    assert out == f"{Workdir(workdir).shortlist}\n"
    assert "Learning from 3 of 5 pairs." in log and "Iteration 5 of 5" in log
    for size in (8, 16, 32, 64):
        assert f"decoding.shortlist={size}: 100.00 % of the references' tokens;" in log


def test_coverage_by_hand(workdir):
    config = loading.load(workdir)
    held_out = corpus.prepare(config, Tokenizer.load(workdir, config), "valid")
    translations = np.full((12, 2), -1, np.int32)
    translations[11] = [10, 11]  # of 7, which occurs three times, in one sentence: 6 and 7
    listed = Shortlist(translations, np.array([], np.int32), 12, is_shared=False)
    count = sum(len(text.split()) for text in REFERENCES)
    assert learning.coverage(listed, 1, held_out) == (0, (4 * 4 + 5) / 5)
    assert learning.coverage(listed, 2, held_out) == (3 / count, (4 * 4 + 6) / 5)


def test_the_likeliest_and_the_most_frequent_tokens_by_hand():
    probabilities = csr_array(
        np.array([[0, 0, 0, 0.5, 0.1, 0.3, 0.1], [0] * 7, [0, 0, 0, 0, 0, 0, 1.0]])
    )
    assert learning.likeliest(probabilities, 2).tolist() == [[5, 4], [-1, -1], [6, -1]]
    counts = np.array([9, 9, 0, 9, 2, 0, 7, 2])
    assert learning.most_frequent(counts, 2).tolist() == [6, 4]
    assert learning.most_frequent(counts, 9).tolist() == [6, 4, 7]


@pytest.mark.slow
def test_all_commands_and_python_translate_with_it(workdir, learned, monkeypatch, capsysbinary):
    translations = transformer.load(workdir, shortlist=1).translate(SOURCES)
    limited = Shortlist(
        learned.translations[:, :1], learned.frequent, learned.vocab_size, learned.is_shared
    )
    for text, (best,) in zip(SOURCES, translations, strict=True):
        (shortlisted,) = limited.tokens_of(
            np.array([[*(int(number) + 4 for number in text.split()), EOS]])
        )
        assert set(best.tokens) <= set(shortlisted.tolist())
    assert run(evaluate, f"--workdir={workdir}", "--decoding.shortlist=1") == 0
    result = json.loads(capsysbinary.readouterr().out)
    assert result["decoding"]["shortlist"] == 1 and result["shortlist"] == limited.fingerprint
    texts = [best.text for (best,) in translations]
    assert Path(result["hypotheses"]).read_text().splitlines() == texts
    stdin = SimpleNamespace(
        buffer=io.BytesIO("".join(f"{text}\n" for text in SOURCES).encode()), isatty=lambda: False
    )
    monkeypatch.setattr("sys.stdin", stdin)
    assert run(translate, f"--workdir={workdir}", "--decoding.shortlist=1") == 0
    assert capsysbinary.readouterr().out.decode().splitlines() == texts
    # The search differs from the one without a shortlist, or it would prove nothing.
    assert translations != transformer.load(workdir).translate(SOURCES)


def test_mistakes_are_errors_of_one_line(workdir, learned, tmp_path, capsys):
    assert "--pairs: 0: must be at least 1" in errors(
        capsys, shortlist, f"--workdir={workdir}", "--pairs=0"
    )
    assert "no such folder" in errors(capsys, shortlist, f"--workdir={workdir}s")
    assert "--decoding.shortlist=65: must be at most 64, the" in errors(
        capsys, evaluate, f"--workdir={workdir}", "--decoding.shortlist=65"
    )
    sampling = ("--decoding.shortlist=8", "--decoding.strategy=sample")
    assert "a shortlist is for beam search" in errors(
        capsys, evaluate, f"--workdir={workdir}", *sampling
    )
    monolingual = {
        "training.objective": "causal_lm",
        "data.source_language": "",
        "training.eval_bleu": "false",
    }
    monolingual_run = make_workdir(
        tmp_path / "other", **monolingual, **{"checkpoint.best_metric": "loss"}
    )
    assert "training.objective=causal_lm has no shortlist" in errors(
        capsys, shortlist, f"--workdir={monolingual_run}"
    )
    line = errors(capsys, evaluate, f"--workdir={monolingual_run}", "--decoding.shortlist=8")
    assert (
        "config.decoding.shortlist=8, config.training.objective=causal_lm: "
        "a shortlist is for beam search" in line
    )
    with pytest.raises(
        transformer.UserError, match="^decoding.shortlist=8: .* is missing; make it with: python -m"
    ):
        transformer.load(make_workdir(tmp_path / "without"), shortlist=8)
