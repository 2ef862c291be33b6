"""scripts.get_data --trees: treebanks as pairs of sentences and linearized trees."""

import json
import re
from pathlib import Path

import pytest

from scripts import get_data
from scripts.datasets.treebank import linearize, read_trees
from tests.checkpoints.workdirs import run
from tests.decoding.trees.grammar import random_treebank
from transformer.decoding.trees.linearized import PUNCTUATION, fits, print_tree

TREEBANK = Path(__file__).resolve().parents[3] / "shared" / "treebank"
EXAMPLE = """
( (S
    (NP-SBJ-1 (NNP Mr.) (NNP Vinken) )
    (VP (VBZ is)
      (S
        (NP-SBJ (-NONE- *-1) )
        (PP-PRD=2 (IN of) (-LRB- -LRB-) (NP (NNP Elsevier)) (-RRB- -RRB-) )))
    (. .) ))
(TOP (NP (NN group)))(FRAG (NN dog) (: --))
"""


def make(tmp_path: Path, *flags: str, **texts: str) -> Path:
    for name, text in texts.items():
        path = tmp_path / f"{name}.mrg"
        path.write_text(text, encoding="utf-8")
    assert run(get_data, *flags, f"--output={tmp_path / 'data'}") == 0
    return tmp_path / "data"


def test_trees_become_pairs_of_lines(tmp_path, capsys):
    folder = make(
        tmp_path, f"--trees={tmp_path}", f"--test={tmp_path / 'a.mrg'}", a=EXAMPLE, b="(X (Y z))"
    )
    sentences = (folder / "train.en").read_text().splitlines()
    trees = (folder / "train.trees").read_text().splitlines()
    assert sentences == ["Mr. Vinken is of -LRB- Elsevier -RRB- .", "group", "dog --", "z"]
    assert trees == [
        "(S (NP XX XX )NP (VP XX (S (PP XX XX (NP XX )NP XX )PP )S )VP . )S",
        "(NP XX )NP",
        "(FRAG XX : )FRAG",
        "(X XX )X",
    ]
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((folder / "data.json").read_text())
    assert record["labels"] == ["FRAG", "NP", "PP", "S", "VP", "X"]
    assert record["files"]["test.trees"]["lines"] == 3 and record["leaves"] == "XX"

    # Leaves, opening and closing brackets have links to their own, first and last words.
    links = (folder / "train.links").read_text().splitlines()
    assert links[2:] == ["0-0 0-1 1-2 1-3", "0-0 0-1 0-2"]
    assert links[0].startswith("0-0 0-1 0-2 1-3 1-4 2-5 2-6 3-7 3-8")


def test_leaves_can_be_tags(tmp_path, capsys):
    folder = make(
        tmp_path, f"--trees={tmp_path}", "--leaves=tags", "--pair=de-baum", a="(S (NN Hund) ($. .))"
    )
    assert (folder / "train.baum").read_text() == "(S NN $. )S\n"
    assert (folder / "train.de").read_text() == "Hund .\n"


def test_a_linearized_tree_of_the_grammar_gives_the_tree_back(tmp_path):
    text = random_treebank(seed=0, count=300)
    path = tmp_path / "a.mrg"
    path.write_text(text)
    trees = list(read_trees(path))
    # The tags, brackets of traces and function tags of the text are removed by other means.
    text = re.sub(r"\(-NONE- [^()]*\)", "", text)
    while re.search(r"\([^() ]+\s*\)", text):
        text = re.sub(r"\([^() ]+\s*\)", "", text)
    text = re.sub(r"\(([A-Z]+)[-=][^() ]*", r"(\1", text)
    expected = []
    for tree in text.removeprefix("( ").split("\n( "):
        tree = " ".join(re.sub(r"\s+\)", ")", tree).split())
        expected.append(without_tags(f"(TOP {tree}"))
    assert expected == [print_tree(words, linearize(tree).split()) for words, tree in trees]


def without_tags(tree: str) -> str:
    return re.sub(
        r"\(([^() ]+) ([^() ]+)\)",
        lambda leaf: f"({leaf[1] if leaf[1] in PUNCTUATION else 'XX'} {leaf[2]})",
        tree,
    )


@pytest.mark.slow
@pytest.mark.skipif(not TREEBANK.is_dir(), reason="needs the sample of the Penn Treebank")
def test_each_tree_of_the_penn_treebank_comes_back():
    lines = (TREEBANK / "wsj22.clean").read_text().splitlines()
    for line, tree in zip(lines, read_trees(TREEBANK / "wsj22.clean"), strict=True):
        assert print_tree(tree.words, linearize(tree.symbols).split()) == without_tags(line)
    for name, count in (("train", 3302), ("valid", 216), ("test", 278)):
        trees = list(read_trees(TREEBANK / f"{name}.mrg"))
        text = (TREEBANK / f"{name}.mrg").read_text()
        leaves = re.findall(r"\(([^()\s]+) ([^()\s]+)\)", text)
        words = [word for tag, word in leaves if tag != "-NONE-"]
        assert len(trees) == count and [word for tree in trees for word in tree.words] == words
        assert all(fits(linearize(tree.symbols).split(), len(tree.words)) for tree in trees)


def test_a_long_sentence_is_one_tree(tmp_path):
    path = tmp_path / "a.mrg"
    path.write_text(f"(S {'(NP (NN dog)) ' * 300})")
    (tree,) = read_trees(path)
    assert len(tree.words) == 300 and fits(tree.symbols, 300)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(S (NN a))\n( (S (NN b)", "line 2: the tree that begins here is not closed"),
        ("(S (NN a)))", r"line 1: \) is outside of all brackets"),
        ("(S (NN a))\n\n()", "line 3: a bracket is empty"),
        ("(S (NP ))", "line 1: the word NP has no tag; a leaf is"),
        (
            "(S dog)\n(S (NN a) dog)",
            "line 2: a bracket has a bracket and a word without a tag: dog",
        ),
        ("((S (NN a)) dog)", "line 1: a bracket has a bracket and a word without a tag: dog"),
        ("(S (NN a (NN b)))", "line 1: a bracket has a word and a bracket: a"),
        ("(S (NN a b))", "line 1: a bracket has two words: b"),
        ("(S (NN a\u00a0b))", "line 1: a bracket has two words: b"),
        ("(S ((NN a)))", "line 1: a bracket within a tree has no label"),
        ("(S (=NN a))", "line 1: the label =NN begins with ="),
        ("( (S (-NONE- *)) )", "line 1: a tree has no words, only traces"),
        ("The dog sleeps.", "line 1: The is outside of all brackets"),
        ("\n", "line 1: the file has no trees"),
    ],
)
def test_a_damaged_tree_is_refused_with_its_line(text, problem, tmp_path, capsys):
    path = tmp_path / "a.mrg"
    path.write_text(text, encoding="utf-8")
    assert run(get_data, f"--trees={path}", f"--output={tmp_path / 'data'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"error: {re.escape(str(path))}, {problem}", line)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"(S (NN a))\n(S (NN \xff))", "line 2: "),
        ("(S (NN a))\n".encode("utf-16"), "is UTF-16 or UTF-32"),
    ],
)
def test_a_file_in_another_encoding_is_refused(content, problem, tmp_path, capsys):
    path = tmp_path / "a.mrg"
    path.write_bytes(content)
    assert run(get_data, f"--trees={path}", f"--output={tmp_path / 'data'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and problem in line


def test_a_folder_without_trees_and_wrong_flags_are_refused(tmp_path, capsys):
    output = f"--output={tmp_path / 'data'}"
    for flags, problem in (
        ([f"--trees={tmp_path}"], r"has no file \*.mrg; name the files of trees"),
        ([f"--trees={tmp_path / 'none'}"], "none: No such file or directory"),
        (["--tfds=a/de-en", "--leaves=tags"], "--leaves=tags: is for --trees; leave it out"),
        (["--trees=a", "--archives=b"], "--archives=b: is for --tfds; leave it out"),
        (["--trees=a", "--pair=en"], "--pair=en: must be the codes of two languages"),
    ):
        assert run(get_data, *flags, output) == 2
        assert re.search(problem, capsys.readouterr().err)
