"""The command `scripts.align` on a tiny model."""

import io
from types import SimpleNamespace

import pytest

import transformer
from scripts import align
from scripts.alignment.links import word_links
from tests.checkpoints.workdirs import make_workdir, run

PAIRS = [("1 2 3", "3 2"), ("4 5", "5 4 4"), ("6", "")]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return make_workdir(tmp_path_factory.mktemp("aligned") / "run")


@pytest.fixture
def aligned(workdir, monkeypatch, capsys):
    def aligned(
        *flags: str, text: str = "".join(f"{source} ||| {target}\n" for source, target in PAIRS)
    ):
        """Returns the exit code, the output and the log of the command."""
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        code = run(align, f"--workdir={workdir}", *flags)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return aligned


def test_a_side_may_be_empty_without_its_space(aligned):
    code, out, _ = aligned("--heads=1.2", text="1 2 |||\n||| 3\n")
    assert (code, out) == (0, "\n\n")


def test_each_line_has_the_links_of_the_chosen_head(workdir, aligned):
    model = transformer.load(workdir)
    code, out, _ = aligned("--heads=1.2")
    links = [word_links(model.attention(*pair), [(0, 1)]) for pair in PAIRS]
    expected = [
        " ".join(f"{s}-{t}" for t, s in sorted((t, s) for s, t in linked)) for linked in links
    ]
    assert code == 0 and out.splitlines() == expected
    assert [len(linked) for linked in links] == [2, 3, 0]


def test_the_guided_heads_are_the_default_and_need_no_file_of_links(tmp_path, monkeypatch, capsys):
    (tmp_path / "links").write_text("0-0\n" * 100)
    settings = {
        "data.mixture": f"('alignments={tmp_path / 'links'}',)",
        "training.guided_heads": "1.2",
    }
    guided = make_workdir(
        tmp_path / "run", **settings | {"model.attention_implementation": "plain"}
    )
    (tmp_path / "links").unlink()
    outputs = []
    for flags in ([], ["--heads=1.2"], ["--heads=1.1"]):
        monkeypatch.setattr(
            "sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"1 2 3 4 ||| 4 3 2 1\n"))
        )
        assert run(align, f"--workdir={guided}", *flags) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


def test_the_error_rate_is_logged(aligned, tmp_path):
    (tmp_path / "gold").write_text("0-0 1?1\n0-0\n\n")
    code, out, log = aligned(f"--gold={tmp_path / 'gold'}")
    assert code == 0 and out.count("\n") == 3
    assert "Alignment error rate" in log
    assert aligned()[0] == 0


def test_unknown_words_in_a_row_are_one_token(tmp_path, capsys):
    workdir = make_workdir(tmp_path / "run", **{"tokenizer.kind": "word", "data.source": "text"})
    assert run(align, f"--workdir={workdir}") == 2
    assert "tokenizer.kind=word: unknown words in a row are one token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "text", "message"),
    [
        (
            ["--heads=2.1"],
            "1 ||| 2\n",
            "--heads=2.1: must be average, or LAYER.HEAD from 1.1 to 1.",
        ),
        (["--heads=first"], "1 ||| 2\n", "--heads=first: must be average"),
        (["--heads=average"], "1 ||| 2\n1 2\n", "line 2: has no ||| between source and target"),
        (
            ["--heads=average"],
            f"1 ||| {'2 ' * 30}\n",
            "line 1: target: has 31 tokens including end-of-sentence",
        ),
        (
            ["--heads=average"],
            "1 ||| 2\u00a03\n",
            "line 1: '2\\xa03' has 1 words between spaces and 2 in its tokens",
        ),
        (["--gold={}"], "1 ||| 2\n", "line 2: 1/1 is not a link such as 0-1"),
        (["--gold=absent"], "1 ||| 2\n", "absent: No such file"),
    ],
)
def test_bad_input_is_one_line(aligned, tmp_path, flags, text, message):
    (tmp_path / "gold").write_text("0-0\n1/1\n")
    code, _, log = aligned(*(flag.format(tmp_path / "gold") for flag in flags), text=text)
    assert code == 2 and message in log and "Traceback" not in log
