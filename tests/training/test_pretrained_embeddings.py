"""Pretrained embeddings: the pieces that match, their scale, the tables they go to, and refused
files.
"""

import gzip
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.tiny import tiny_config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import PieceVocabulary
from transformer.support.errors import UserError
from transformer.support.special_tokens import SPECIAL_PIECES
from transformer.training.pretrained_embeddings import (
    check_files,
    load_pretrained_embeddings,
    read_rows,
)

PIECES = ["<pad>", "<unk>", "<s>", "</s>", "\u2581the", "the", "\u2581Haus", "ing"]


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "vectors.txt"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_pieces_match_without_their_word_mark_and_are_divided_by_sqrt_d_model(write, caplog):
    path = write("3 4\nthe 1 2 3 4\nHaus -1 0 0.5 2\nthe 9 9 9 9\n\u00fcber 0 0 0 0\n")
    with caplog.at_level(logging.INFO, logger="absl"):
        rows, has_vector = read_rows(path, PIECES, 4)
    np.testing.assert_array_equal(has_vector, [False] * 4 + [True, True, True, False])
    # Divided by sqrt(4), by which the model multiplies; the first of two lines for a word is used.
    np.testing.assert_array_equal(
        rows[4:7], [[0.5, 1, 1.5, 2], [0.5, 1, 1.5, 2], [-0.5, 0, 0.25, 1]]
    )
    assert f"{path} has vectors for 3 of 8 pieces." in caplog.text


def test_the_header_is_optional(write):
    rows, has_vector = read_rows(write("the 1 2 3 4\nHaus 1 1 1 1"), PIECES, 4)
    assert has_vector.sum() == 3 and rows[4, 0] == 0.5
    # Files of web pages have words with spaces.
    rows, has_vector = read_rows(
        write("the 1 2 3 4\n. . . 5 6 7 8\nat x@y.com 1 1 1 1\nHaus 1 1 1 1"), PIECES, 4
    )
    assert has_vector.sum() == 3 and rows[4, 0] == 0.5


def test_the_file_may_be_gzip_as_it_is_downloaded(tmp_path):
    path = tmp_path / "cc.de.300.vec.gz"
    # a word with a line break
    path.write_bytes(gzip.compress(b"2 4\nthe 1 2 3 4 \na\rb 5 6 7 8 \nHaus 1 1 1 1 \n"))
    rows, has_vector = read_rows(path, PIECES, 4)
    assert has_vector.sum() == 3 and rows[4, 0] == 0.5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 4\nthe 1 2 3\n", "line 2 has 3 numbers, must be model.d_model=4"),
        ("the 1 2 3 4\nHaus 1 x 3 4\n", "line 2 is not a word and its numbers"),
        ("the 1 2 3 4\nHaus 1 nan 3 4\n", "line 2 has a number that is not finite"),
        ("nowhere 1 2 3 4\n", "has a vector for none of the 8 pieces"),
    ],
)
def test_the_error_for_an_unusable_file_names_file_and_line(write, text, problem):
    path = write(text)
    with pytest.raises(UserError) as caught:
        read_rows(path, PIECES, 4)
    assert str(caught.value).startswith(f"{path}: {problem}")


def test_the_error_for_a_missing_file_names_it(tmp_path):
    with pytest.raises(UserError, match="no-such.txt: no such file"):
        read_rows(tmp_path / "no-such.txt", PIECES, 4)


@pytest.mark.parametrize("side", ["source_vectors", "target_vectors"])
def test_a_missing_file_or_a_wrong_first_line_is_found_without_reading_the_file(write, side):
    def check(name: Path | str, d_model: int) -> None:
        check_files(tiny_config(**{f"model__{side}": str(name), "model__d_model": d_model}).model)

    path = write("2 4\nthe 1 2 3 4\nHaus 1 x 3 4\n")
    check("", 4), check(path, 4)
    with pytest.raises(UserError, match="line 2 has 4 numbers, must be model.d_model=8"):
        check(path, 8)
    with pytest.raises(UserError, match="no-such.txt: no such file"):
        check(path.with_name("no-such.txt"), 4)


@pytest.mark.parametrize("shared", [True, False])
def test_found_rows_replace_random_ones_in_their_table(shared, tmp_path):
    def stack(value: float) -> dict:
        return {"embedding": {"table": jnp.full((7, 4), value)}}

    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    source.write_text("a 14 14 14 14\nb 14 14 14 14\n")
    target.write_text("y 16 16 16 16\n")
    model = tiny_config(
        model__source_vectors=str(source), model__target_vectors=str(target), model__d_model=4
    ).model
    tokenizer = Tokenizer(
        *(PieceVocabulary([*SPECIAL_PIECES, *words], [None, None]) for words in ("abc", "xyz"))
    )
    parameters = {"decoder": stack(1.0), "encoder": {} if shared else stack(2.0)}
    replaced = load_pretrained_embeddings(parameters, model, tokenizer)
    tables = jax.tree.map(lambda table: table[4:, 0].tolist(), replaced)
    if shared:
        assert tables["decoder"]["embedding"]["table"] == [7, 8, 1]
    else:
        assert tables["encoder"]["embedding"]["table"] == [7, 7, 2]
        assert tables["decoder"]["embedding"]["table"] == [1, 8, 1]
