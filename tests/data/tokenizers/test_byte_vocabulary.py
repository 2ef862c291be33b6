"""The vocabulary of bytes."""

import pytest

from tests.data.tokenizers.test_tokenizer import config, make  # noqa: F401
from transformer.data.tokenizers import vocabulary
from transformer.data.tokenizers.byte_vocabulary import ByteVocabulary
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, UNK

TEXTS = ["Ein Mädchen läuft.", "ภาษาไทย", "日本語 text", "סלאם فارسی", "a  b\t🙂", "<pad>", ""]


def test_tokens_are_the_bytes_of_utf8_and_decoding_restores_any_text():
    made = ByteVocabulary()
    tokens = made.encode(TEXTS)
    assert tokens == [[byte + 4 for byte in text.encode()] for text in TEXTS]
    assert made.decode(tokens) == TEXTS
    assert made.decode([[BOS, *tokens[0], UNK, EOS, PAD]]) == TEXTS[:1]
    assert made.size == len(made.pieces) == len(set(made.pieces)) == 260
    assert [made.pieces[token] for token in tokens[0][:7]] == [*"Ein▁M", r"\xC3", r"\xA4"]


def test_spaces_at_the_ends_are_no_tokens():
    made = ByteVocabulary(["a\u2581b"])
    assert made.encode(["", " ", "\t ", " c "]) == [[], [], [], [ord("c") + 4]]
    # U+2581 within a symbol is the character itself.
    assert made.encode(["a b", "a\u2581b"]) == [[101, 36, 102], [260]]


def test_bytes_that_are_not_utf8_are_left_out_of_a_text():
    (tokens,) = ByteVocabulary().encode(["aäb"])
    assert ByteVocabulary().decode([tokens[:2] + tokens[3:]]) == ["ab"]


def test_symbols_are_one_token_each_and_the_longest_counts():
    made = ByteVocabulary(["<2de>", "▁(NP", "▁(N", "▁XX", "<2de>"])
    assert made.pieces[260:] == ["<2de>", "▁(NP", "▁(N", "▁XX"]
    texts = ["<2de> ab", "(N XX (NP XX", "x(N"]
    tokens = made.encode(texts)
    assert [[made.pieces[token] for token in sequence] for sequence in tokens] == [
        ["<2de>", "▁", "a", "b"],
        ["▁(N", "▁XX", "▁(NP", "▁XX"],
        ["x", "(", "N"],
    ]
    assert made.decode(tokens) == texts


def test_the_file_restores_the_vocabulary_and_damage_is_named():
    made = ByteVocabulary(["<2de>"])
    again = vocabulary.load(made.serialized, "a")
    assert isinstance(again, ByteVocabulary) and again.pieces == made.pieces
    for content in (b'{"kind": "byte"}', b'{"kind": "byte", "symbols": [1]}'):
        with pytest.raises(UserError, match="^a: not a SentencePiece model, or damaged"):
            vocabulary.load(content, "a")


def test_a_run_makes_it_with_its_tags_and_without_training(config, tmp_path):  # noqa: F811
    config.data.source_tag = "<2de>"
    made = make(config, tmp_path, kind="byte", vocab_size=262, user_symbols=("<x>",))
    assert made.is_shared and made.source.symbols == ["<x>", "<2de>"]
    assert made.encoders[0].encode(["a"]) == [[261, 4 + 32, 4 + 97]]


def test_a_vocabulary_too_small_is_refused(config, tmp_path):  # noqa: F811
    with pytest.raises(UserError, match="vocab_size=60: tokenizer.kind=byte has 260 tokens here"):
        make(config, tmp_path, kind="byte")
