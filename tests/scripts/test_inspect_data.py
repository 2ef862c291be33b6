"""The command `scripts.inspect_data`: its report, its list, and the run that takes the list."""

import math

import pytest

import transformer
from scripts import inspect_data
from scripts.inspect_data import copied_fraction, length_ratio, score_pairs
from tests.checkpoints.workdirs import REFERENCES, SOURCES, make_workdir, run
from tests.data.files import text_config
from transformer.config import loading
from transformer.data.sources.source import open_source


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return make_workdir(tmp_path_factory.mktemp("inspected") / "run")


def test_the_worst_pairs_are_printed_and_can_be_excluded(workdir, tmp_path, capsys):
    path = tmp_path / "worst.tsv"
    assert (
        run(
            inspect_data,
            f"--workdir={workdir}",
            "--worst=2",
            "--min_tokens=0",
            f"--exclude={path}",
            "--share=0.4",
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("train.in and train.out: 5 pairs")
    numbers = [
        int(line.split(":")[0].removeprefix("pair ")) for line in lines if line.startswith("pair ")
    ]
    pmi = [float(line.split("PMI ")[1].split(",")[0]) for line in lines if line.startswith("pair ")]
    assert len(numbers) == 2 and pmi == sorted(pmi)
    assert run(inspect_data, f"--workdir={workdir}", "--min_tokens=99") == 0
    assert "pair 1:" not in capsys.readouterr().out  # shorter targets are counted, but not ranked
    listed = [line.split("\t") for line in path.read_text().splitlines()]
    assert [int(number) for number, _ in listed] == sorted(numbers)
    config = loading.override(loading.load(workdir), [("data.exclude", str(path))])
    # Numbers are those of the whole data, whatever the run leaves out.
    assert inspect_data.read_corpus(
        inspect_data.make_parser().parse([f"--workdir={workdir}"]), config.data
    )[1] == list(zip(SOURCES, REFERENCES, strict=True))
    kept = [
        pair
        for number, pair in enumerate(zip(SOURCES, REFERENCES, strict=True), start=1)
        if number not in numbers
    ]
    assert [
        tuple(side.decode() for side in pair) for pair in open_source(config.data, "train")
    ] == kept


def test_the_numbers_of_a_document_run_are_those_of_the_lines(tmp_path):
    for language, text in (("en", "a\n\nb\n"), ("de", "A\n\nB\n")):
        (tmp_path / f"train.{language}").write_text(text)
    data = text_config(tmp_path, tmp_path / "cache").data
    data.context = 1
    _, pairs = inspect_data.read_corpus(
        inspect_data.make_parser().parse([f"--workdir={tmp_path}"]), data
    )
    assert pairs == [("a", "A"), ("", ""), ("b", "B")]


@pytest.mark.slow
def test_other_files_directions_and_ensembles_can_be_inspected(workdir, tmp_path, capsys):
    reverse = make_workdir(
        tmp_path / "reverse",
        seed=1,
        **{"data.source_language": "out", "data.target_language": "in"},
    )
    (tmp_path / "a").write_text("1 2\n3\n4 5 6\n")
    (tmp_path / "b").write_text("1 2\n\n7\n")
    flags = [f"--source={tmp_path / 'a'}", f"--target={tmp_path / 'b'}", f"--reverse={reverse}"]
    ensemble = f"{workdir},{make_workdir(tmp_path / 'second', seed=2)}"
    assert run(inspect_data, f"--workdir={ensemble}", *flags, "--min_tokens=0") == 0
    out = capsys.readouterr().out
    for part in (
        "b: 3 pairs",
        "other direction: PMI in nats per token: 1% at most",
        "1 pair with an empty side",
        "2 pairs with one side 3 times as long as the other",
        "1 pair with the target equal to the source",
        ", lengths 1:inf, 0% copied",
    ):
        assert part in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--share=0"], "--share=0.0: must be above 0 and at most 1"),
        (["--source=a"], "--source and --target: give both files"),
        (["--source={tmp}/a", "--target={tmp}/b"], "a has 1 line and {tmp}/b has 2"),
        (["--exclude={tmp}/absent/list"], "{tmp}/absent/list: cannot be written"),
        (["--reverse={tmp}/absent"], "{tmp}/absent: no such folder"),
        (["--reverse={run}"], "translates in to out, must translate out to in"),
    ],
)
def test_bad_input_is_one_line(workdir, tmp_path, capsys, flags, message):
    (tmp_path / "a").write_text("1\n")
    (tmp_path / "b").write_text("1\n2\n")
    assert (
        run(
            inspect_data,
            f"--workdir={workdir}",
            *(flag.format(tmp=tmp_path, run=workdir) for flag in flags),
        )
        == 2
    )
    assert message.format(tmp=tmp_path) in capsys.readouterr().err


PAIRS = [("1 2 3", "3 2 1"), ("4", ""), ("5 6", "6 " * 40), ("7 7", "7 5")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspected")
    return [transformer.load(make_workdir(folder / str(seed), seed=seed)) for seed in range(2)]


@pytest.mark.parametrize(
    ("source", "target", "ratio"),
    [("a b", "c d e", 1.5), ("a b c", "d", 3.0), ("a", "", math.inf), ("", "", 1.0)],
)
def test_length_ratio(source, target, ratio):
    assert length_ratio(source, target) == length_ratio(target, source) == ratio


@pytest.mark.parametrize(
    ("source", "target", "share"),
    [("a b c", "a b c", 1.0), ("a b", "a a a a", 0.25), ("a", "b", 0.0), ("a", "", 0.0)],
)
def test_copied(source, target, share):
    assert copied_fraction(source, target) == share


def test_scores_are_those_of_the_models_per_token(models):
    (model, reverse), reported = models, []
    measured = list(score_pairs(PAIRS, model, reverse, reported.append))
    assert [(pair.number, pair.source, pair.target) for pair in measured] == [
        (number, *pair) for number, pair in enumerate(PAIRS, start=1)
    ]
    for pair in (measured[0], measured[1], measured[3]):
        texts = (pair.source, pair.target)
        for scores, scorer, (source, target) in zip(
            pair.scores, models, (texts, texts[::-1]), strict=True
        ):
            one, without = scorer.score([(source, target), ("", target)])
            assert scores.loss == pytest.approx(-one.log_probability / len(one.tokens), rel=1e-5)
            gain = one.log_probability - without.log_probability
            assert scores.pmi == pytest.approx(gain / len(one.tokens), rel=1e-4, abs=1e-6)
        assert pair.pmi == pytest.approx(sum(scores.pmi for scores in pair.scores) / 2)
    assert math.isnan(measured[2].pmi)
    one_direction = score_pairs(PAIRS, model, None, reported.append)
    assert [len(pair.scores) for pair in one_direction] == [1] * 4
    assert reported == [4, 4]


def test_an_empty_source_has_no_mutual_information(models):
    (measured,) = score_pairs([("", "1 2")], models[0], None, lambda count: None)
    assert measured.pmi == 0.0
