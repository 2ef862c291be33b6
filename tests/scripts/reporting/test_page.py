"""The report's page: what it contains, what it leaves out, and that no text of a run becomes
markup.
"""

import base64
import hashlib
import json
import shlex
from html.parser import HTMLParser

import numpy as np
import pytest

import transformer
from scripts import report
from scripts.reporting import scores, sections
from scripts.reporting.attention_and_beams import Inspected, attention_section, entropy
from scripts.results.runs import read_runs
from tests.checkpoints.workdirs import run
from tests.scripts.evaluated import make_run
from tests.scripts.reporting.hostile_runs import REFERENCES, SCRIPT, SOURCES
from transformer.decoding.forced_decoding import Attention
from transformer.support.environment import CONTENTS


class Elements(HTMLParser):
    """The elements of a page with their attributes and the text at their beginning."""

    def __init__(self, html: str):
        super().__init__()
        self.found: list[tuple[str, dict, list[str]]] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes), []))

    def handle_data(self, data):
        if self.found:
            self.found[-1][2].append(data)

    def handle_endtag(self, tag):
        self.found.append(("end", {}, []))

    def of(self, tag: str) -> list[tuple[dict, str]]:
        return [(attributes, "".join(text)) for name, attributes, text in self.found if name == tag]


@pytest.fixture(scope="module")
def html(page) -> str:
    return page.read_text()


@pytest.fixture(scope="module")
def data(html) -> dict:
    ((_, text),) = [
        element
        for element in Elements(html).of("script")
        if element[0].get("type") == "application/json"
    ]
    return json.loads(text)


@pytest.mark.slow
def test_the_policy_allows_only_the_page_s_own_scripts(html):
    elements = Elements(html)
    scripts = [text for attributes, text in elements.of("script") if attributes.get("type") is None]
    ((policy, _),) = [element for element in elements.of("meta") if element[0].get("http-equiv")]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = dict(part.split(" ", 1) for part in policy["content"].split("; "))
    assert len(scripts) == 2 and allowed["script-src"] == " ".join(
        f"'sha256-{element}'" for element in hashes
    )
    assert allowed["default-src"] == "'none'"


def test_no_text_of_a_run_becomes_markup_and_nothing_is_loaded(html):
    assert SCRIPT not in html and "<b>" not in html and "<i>" not in html
    elements = Elements(html)
    assert "<b>bold" in "".join(text for _, text in elements.of("h1"))
    for _, attributes, _ in elements.found:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        assert attributes.get("href", "#").startswith("#")
    assert len(html) < 5e6


def test_all_translations_can_be_searched(data):
    translations = data["translations"]
    assert translations["names"] == ["source", "reference", "A seed 0", "B seed 1"]
    assert [line[:2] for line in translations["lines"]] == [
        list(pair) for pair in zip(SOURCES, REFERENCES, strict=True)
    ]


def test_the_page_has_the_models_weights(runs, data):
    model = transformer.load(runs[0])
    shown = data["attention"][0]
    assert shown["source"] == f"1 {SCRIPT} 2"
    expected = model.attention(shown["source"], shown["translation"])
    for name, part in shown["parts"].items():
        weights = (
            np.frombuffer(base64.b64decode(part["weights"]), np.uint8).reshape(part["shape"]) / 255
        )
        np.testing.assert_allclose(weights, getattr(expected, name), atol=0.5 / 255 + 1e-6)
        assert (len(part["queries"]), len(part["keys"])) == weights.shape[2:]
    assert len(data["attention"]) == 4  # two runs, two sentences
    assert {"curve-train-loss", "curve-valid-bleu", "beam-0", "beam-3"} <= data["charts"].keys()


def test_what_is_missing_is_said(html):
    for note in (
        "begun has no checkpoint: the sections on attention and beam search leave it out.",
        "begun has no evaluation of the split valid; run",
    ):
        assert note in html


def test_a_damaged_record_of_data_is_unknown(tmp_path):
    path = make_run(tmp_path / "run")
    (path / "metrics.jsonl").write_text('{"step": 1, "split": "valid", "loss": 1.0}\n')
    (path / CONTENTS).write_text("{")
    read = read_runs([path])
    (row,) = sections.runs_section(read, []).content["rows"]
    assert row[sections.HEADER.index("training data")] == "unknown"
    (note,) = sections.curve_section(read).notes
    assert f"{CONTENTS}: damaged" in note


def test_tokens_are_written_as_in_all_charts():
    weights = np.full((1, 1, 2, 2), 0.5, np.float32)
    pieces = ("\u2581a", "\u2028"), ("<s>", "\u2581b"), ("\u2581b", "</s>")
    shown = Inspected("run", 1, "", "", Attention(*pieces, weights, weights, weights), None)
    parts = attention_section([shown], []).data["attention"][0]["parts"]
    assert parts["cross"]["keys"] == parts["encoder"]["queries"] == ["·a", r"\u2028"]
    assert (parts["cross"]["queries"], parts["decoder"]["queries"]) == (
        ["·b", "</s>"],
        ["<s>", "·b"],
    )


def test_runs_have_the_names_of_their_systems(html):
    cells = [text for _, text in Elements(html).of("td")]
    assert {"A: dropout=0.1", "B: dropout=0.3"} <= set(cells)


def test_entropy_is_that_of_the_distribution():
    weights = np.array([[[[1, 0, 0, 0], [0.25] * 4], [[0.5, 0.5, 0, 0], [0.5, 0.25, 0.25, 0]]]])
    np.testing.assert_allclose(entropy(weights), [[1.0, 1.25]])


def test_the_page_compares_evaluations_on_the_data_of_another_run(runs, tmp_path):
    path = next((runs[1] / "evaluations").glob("*.json"))
    saved = path.read_text()
    try:
        path.write_text(
            json.dumps(json.loads(saved) | {"split": None, "data": f"test of {tmp_path}/lo"})
        )
        read = read_runs(runs[:2])
        for flags in ((None, f"{tmp_path}/lo"), ("test", f"{tmp_path}/lo")):
            compared = scores.compare(read, *flags)
            assert (
                list(compared.evaluations) == ["plain"]
                and compared.result["text"] == f"test of {tmp_path}/lo"
            )
            command = [
                "python",
                "-m",
                "transformer.evaluate",
                f"--workdir={runs[0]}",
                "--split=test",
            ]
            assert compared.notes[0].endswith(
                f"; run {shlex.join([*command, f'--data={tmp_path}/lo'])}"
            )
    finally:
        path.write_text(saved)
    assert list(scores.compare(read_runs(runs[:2]), None, None).evaluations) == ["<b>bold", "plain"]


def test_a_damaged_evaluation_is_a_note(runs, tmp_path):
    path = next((runs[1] / "evaluations").glob("*.json"))
    content = path.read_text()
    try:
        path.write_text("{")
        assert run(report, *map(str, runs[:2]), f"--output={tmp_path}/r.html", "--sentences=0") == 0
    finally:
        path.write_text(content)
    text = (tmp_path / "r.html").read_text()
    assert f"{path}: damaged (JSONDecodeError" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["{run}", "--output=r.txt"], "--output=r.txt: must end in .html"),
        (
            ["{run}", "--output={tmp}/absent/r.html"],
            "--output={tmp}/absent/r.html: there is no folder {tmp}/absent",
        ),
        (["{run}", "--sentences=2"], "--sentences: is for a page; give --output=FILE.html as well"),
        (
            ["{run}", "--output={tmp}/r.html", "--readme=README.md"],
            "--readme=README.md: is for a table",
        ),
        (["{run}", "--output={tmp}/r.html", "--sentence=\udcff"], "--sentence: is not UTF-8"),
        (
            ["{run}", "--output={tmp}/r.html", "--sentences=21"],
            "argument --sentences: invalid choice: ",
        ),
        (["{tmp}/absent", "--output={tmp}/r.html"], "{tmp}/absent: no such folder"),
        (["{run}", "{run}", "--output={tmp}/r.html"], "{run}: is given twice; give it once"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_page(runs, tmp_path, capsys, flags, message):
    names = {"run": runs[1], "tmp": tmp_path}
    assert run(report, *(flag.format(**names) for flag in flags)) == 2
    assert message.format(**names) in capsys.readouterr().err
    assert not list(tmp_path.glob("*"))
