"""Models of several languages: the tag of each direction in every way to translate, and the matrix
of scores.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import transformer
from configs import base
from scripts import align, directions, record, translate_corpus
from scripts.alignment.links import word_links
from scripts.corpora import translator
from scripts.results.evaluations import read_evaluations
from scripts.serve import make_parser, read_pairs
from scripts.serving.middleware import Metrics
from scripts.serving.models import load_models
from tests.checkpoints.workdirs import REFERENCES, SOURCES, make_workdir, run
from tests.data.files import write
from tests.scripts.recorded import complete_run
from transformer import evaluate, translate
from transformer.checkpoints import loaded_models
from transformer.config.loading import with_values
from transformer.config.types import with_changes
from transformer.data.sources.mixture import check_direction
from transformer.support.errors import UserError
from transformer.workdir import Workdir

BACK = [("data.source_language", "out"), ("data.target_language", "in")]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run from "in" to "out" and back, with random parameters, and a third language without
    training text.
    """
    folder = tmp_path_factory.mktemp("runs")
    settings = {
        "data.source": "text",
        "data.source_tag": ">>{target_language}<<",
        "data.mixture": "('label=to', 'label=back source_language=out target_language=in')",
        "tokenizer.kind": "char",
        "tokenizer.vocab_size": "40",
        "tokenizer.user_symbols": "('>>third<<',)",
    }
    path = make_workdir(folder / "both", **settings)
    for split in ("train", "valid", "test"):
        write(folder / "data" / f"{split}.third", SOURCES[::-1])
    return path


def matrix_rows(text):
    """Returns the cells of the lines below the header, each line between empty cells."""
    _, _, *rows = [line.split("|") for line in text.splitlines() if line.startswith("|")]
    return rows


def pieces_of_source(model, text):
    decoder = model.decoder
    (tokens,) = decoder.source_tokens([text], first_line=1)
    return [decoder.tokenizer.source.pieces[token] for token in tokens]


def test_the_tag_of_the_direction_begins_each_source(workdir):
    model = transformer.load(workdir)
    assert pieces_of_source(model, "1 2") == ["▁", ">>out<<", "▁", "1", "▁", "2", "</s>"]
    back = model.with_languages("out", "in")
    assert (
        pieces_of_source(back, "1 2")[1] == ">>in<<"
        and pieces_of_source(model, "1 2")[1] == ">>out<<"
    )
    assert pieces_of_source(model.with_languages(target="third"), "1")[1] == ">>third<<"
    assert model.translate([""])[0][0].tokens == ()
    score = model.score([("1 2", "2 1")])[0].log_probability
    assert back.score([("1 2", "2 1")])[0].log_probability != pytest.approx(score, abs=1e-3)
    assert model.num_tokens("1 2") == 7 and model.encode(["1 2"])[0].pieces[1] == ">>out<<"


def test_a_tag_before_that_of_the_run_is_a_warning_with_the_known_ones(workdir, caplog):
    model = transformer.load(workdir)
    model.translate(["1 >>th<<", "<b>1", "x >>", ">>", " >>th<<1 2", ">>in<< 1"])
    (message,) = [record.message for record in caplog.records if "the run" in record.message]
    assert message == (
        "Line 5 begins with >>th<<, and the run's tag >>out<< precedes it; leave it out, "
        "and name a target language instead. The run has >>third<<, >>out<<, >>in<<."
    )
    caplog.clear()
    model.with_languages("out", "in").translate(["1 2", ">>in<< 1"])
    assert "Line 2 begins with >>in<<, and the run's tag >>in<< precedes" in caplog.text


def test_the_tag_is_no_word_of_the_sentence(workdir):
    attention = transformer.load(workdir).attention("1 2", "2 1")
    assert attention.source_pieces[: attention.tag_length] == ("▁", ">>out<<")
    links = word_links(attention, [(0, 0), (0, 1)])
    assert {source for source, _ in links} <= {0, 1} and {target for _, target in links} == {0, 1}


def test_a_model_of_one_direction_refuses_another(tmp_path):
    model = transformer.load(make_workdir(tmp_path / "one"))
    with pytest.raises(
        UserError,
        match="in-third: the model translates in-out, and no tag tells it another language",
    ):
        model.with_languages(target="third")
    assert model.with_languages("in", "out").config == model.config


def test_a_direction_whose_corpora_have_tags_of_their_own_is_refused():
    mixture = ("label=a source_tag=>>de<<", "label=b target_language=fr source_tag=>>fr<<")
    mixture += ("label=c target_language=it",)
    data = with_values(base.get_config(), {"data.source": "text", "data.mixture": mixture}).data
    for code in ("de", "it"):
        check_direction(data, with_changes(data, target_language=code))
    with pytest.raises(
        UserError, match="^en-fr: leave the languages out, and write >>fr<< before each source$"
    ):
        check_direction(data, with_changes(data, target_language="fr"))


def test_another_direction_can_be_left_again(workdir):
    model = transformer.load(workdir)
    again = model.with_languages("out", "in").with_languages("in", "out")
    assert pieces_of_source(again, "1")[1] == ">>out<<"


def test_an_unknown_language_is_one_line_with_the_known_tags(workdir):
    message = (
        ">>fr<<: the vocabulary has no such token for data.source_tag; "
        "it has >>third<<, >>out<<, >>in<<"
    )
    with pytest.raises(UserError, match=message):
        transformer.load(workdir).with_languages(target="fr")


def test_the_commands_translate_and_evaluate_another_direction(
    workdir, capsys, monkeypatch, tmp_path
):
    assert run(translate, f"--workdir={workdir}", "--target_language=fr") == 2
    assert ">>fr<<: the vocabulary has no such token" in capsys.readouterr().err
    assert run(evaluate, f"--workdir={workdir}", "--target_language=third") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["references"].endswith("test-step20-target_languagethird.references.txt")
    with open(result["references"], encoding="utf-8") as file:
        assert file.read().splitlines() == SOURCES[::-1]
    assert (result["source_language"], result["target_language"]) == ("in", "third")
    write(tmp_path / "lines.txt", ["1 2"])
    corpus = (
        f"--source={tmp_path / 'lines.txt'}",
        f"--output={tmp_path / 'translated'}",
        "--shard=1/1",
    )
    for command, flags in ((align, ()), (translate_corpus, corpus)):
        assert run(command, f"--workdir={workdir}", "--target_language=fr", *flags) == 2
        assert ">>fr<<: the vocabulary has no such token" in capsys.readouterr().err
    identities = [
        translator.identity(loaded_models.load([str(workdir)], "best", 1, given))
        for given in ([], BACK)
    ]
    assert identities[0]["vocabulary"].endswith(" >>out<<") and identities[1][
        "vocabulary"
    ].endswith(" >>in<<")
    # The file of the other direction stays.
    assert run(evaluate, f"--workdir={workdir}", f"--output={workdir / 'evaluations'}") == 0
    evaluations = read_evaluations(Workdir(workdir))
    assert sorted(each.settings["data.target_language"] for each in evaluations) == ["out", "third"]


@pytest.mark.slow
def test_the_matrix_has_all_directions_and_marks_those_without_training(workdir, tmp_path, capsys):
    assert run(directions, f"--workdir={workdir}", "--languages=in,out,third", "--metric=chrf") == 0
    captured = capsys.readouterr()
    results = json.loads(captured.out)
    assert len(results) == 6
    for pair, references in (
        ("in-out", REFERENCES),
        ("out-in", SOURCES),
        ("out-third", SOURCES[::-1]),
    ):
        with open(results[pair]["references"], encoding="utf-8") as file:
            assert file.read().splitlines() == references
    rows = matrix_rows(captured.err)
    stars = np.array([["*" in cell for cell in row[2:5]] for row in rows])
    assert stars.tolist() == [[False, False, True], [False, False, True], [True, True, False]]
    low, high = results["in-out"]["chrf_interval"]
    assert f"{results['in-out']['chrf']:.2f} ± {(high - low) / 2:.2f}" in rows[0][3]
    assert low < results["in-out"]["chrf"] < high

    # The record of the run shows the same matrix.
    copy = Workdir(Path(shutil.copytree(workdir, tmp_path / "copy")))
    line = {"step": 20, "split": "valid", "bleu": 1.0, "loss": 1.0, "seconds": 9.0}
    copy.metrics.write_text(json.dumps(line) + "\n")
    copy.mark_complete(30)
    assert run(record, str(copy.path), f"--output={tmp_path}") == 0
    capsys.readouterr()
    flags = [f"--workdir={tmp_path / 'seed0.json'}", "--languages=in,out,third", "--metric=chrf"]
    assert run(directions, *flags) == 0
    shown = capsys.readouterr()
    assert shown.err == captured.err[-len(shown.err) :]
    assert json.loads(shown.out).keys() == results.keys()
    for flag in ("--split=valid", "--checkpoint=10", "--average=2", "--decoding.beam_size=9"):
        assert run(directions, *flags, flag) == 2
        assert "seed0.json: has no evaluation of these languages on" in capsys.readouterr().err


@pytest.mark.slow
def test_the_matrix_has_the_metric_of_another_program(workdir, tmp_path, capsys):
    program = "import sys; [print(len(line)) for line in open(sys.argv[1])]"
    flags = ("--languages=in,out", "--metric=length", f"--workdir={workdir}")
    scorer = f"--scorer=length:{sys.executable} -c '{program}' {{hypothesis}}"
    assert run(directions, *flags, scorer) == 0
    results = json.loads(capsys.readouterr().out)
    assert results.keys() == {"in-out", "out-in"}
    for result in results.values():
        lines = Path(result["hypotheses"]).read_text().splitlines(keepends=True)
        assert result["length"] == pytest.approx(np.mean([len(line) for line in lines]))
        low, high = result["length_interval"]
        assert low < result["length"] < high


def test_languages_that_a_run_does_not_translate_into_have_empty_cells(tmp_path, capsys):
    mixture = "('label=one', 'label=two source_language=third')"
    settings = {"data.source": "text", "tokenizer.kind": "char", "tokenizer.vocab_size": "40"}
    (tmp_path / "data").mkdir()
    for split in ("train", "valid", "test"):
        write(tmp_path / "data" / f"{split}.third", SOURCES[::-1])
    workdir = make_workdir(tmp_path / "run", **settings, **{"data.mixture": mixture})
    assert run(directions, f"--workdir={workdir}", "--languages=in,out,third", "--metric=chrf") == 0
    captured = capsys.readouterr()
    assert sorted(json.loads(captured.out)) == ["in-out", "third-out"]
    rows = matrix_rows(captured.err)
    assert [[bool(cell.strip()) for cell in row[2:5]] for row in rows] == [
        [False, True, False],
        [False] * 3,
        [False, True, False],
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--languages=in",), "--languages=in: must be two or more codes"),
        (("--languages=in,in",), "each once"),
        (("--languages=in,out", "--metric=blue"), "--metric=blue: must be one of"),
        (("--languages=in,out", "--metric=bracket_f1"), "--metric=bracket_f1: must be one of bleu"),
        (("--languages=in,out,de",), ">>de<<: the vocabulary has no such token"),
    ],
)
def test_wrong_flags_are_one_line(workdir, capsys, flags, message):
    assert run(directions, f"--workdir={workdir}", *flags) == 2
    errors = capsys.readouterr().err
    assert message in errors and "Translating" not in errors


def test_a_record_without_the_metric_is_one_line(tmp_path, capsys):
    path = complete_run(tmp_path / "run")
    (file,) = (path / "evaluations").glob("*.json")
    # An older version computed fewer metrics.
    result = json.loads(file.read_text())
    del result["bleu_paper"]
    file.write_text(json.dumps(result))
    assert run(record, str(path), f"--output={tmp_path}") == 0
    record_path = tmp_path / "seed0.json"
    flags = [f"--workdir={record_path}", "--languages=en,de", "--split=valid", "--checkpoint=last"]
    assert run(directions, *flags) == 0
    assert run(directions, *flags, "--metric=bleu_paper") == 2
    message = "--metric=bleu_paper: the evaluation of en-de does not have it"
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_translates_the_pairs_that_one_model_knows(workdir):
    arguments = make_parser().parse([f"--workdir={workdir}", "--languages=in:out, out:in"])
    pairs = read_pairs(arguments)
    served = load_models([str(workdir)], "best", 1, {}, 0.0, 9, Metrics(), 0, pairs=pairs)
    assert [(model.source, model.target) for model in served] == [("in", "out"), ("out", "in")]
    assert pieces_of_source(served[1].model, "1")[1] == ">>in<<"
    for wrong in ("--languages=in-out", "--languages=in:"):
        with pytest.raises(UserError, match="must be SOURCE:TARGET"):
            read_pairs(make_parser().parse([f"--workdir={workdir}", wrong]))
    with pytest.raises(UserError, match="is for one model"):
        read_pairs(make_parser().parse(["--workdir=a", "--workdir=b", "--languages=in:out"]))
