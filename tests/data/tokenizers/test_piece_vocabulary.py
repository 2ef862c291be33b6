"""Vocabularies of pieces: encoding, the views of both sides, files, and damage."""

import base64
import io
import json
import pickle

import pytest
import sentencepiece

from tests.data.files import text_config
from tests.data.tokenizers.tiny_texts import ENGLISH, GERMAN
from transformer.data.tokenizers import tokenizer, vocabulary
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import PieceVocabulary
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL_PIECES, UNK


def train_model(texts: list[str]) -> bytes:
    """Returns a SentencePiece model with the ids of Marian: EOS is 0, UNK is 1."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 5),
        model_writer=content,
        vocab_size=40,
        model_type="bpe",
        eos_id=0,
        unk_id=1,
        bos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )
    return content.getvalue()


@pytest.fixture(scope="module")
def models() -> tuple[bytes, bytes]:
    return train_model(ENGLISH), train_model(GERMAN)


@pytest.fixture(scope="module")
def pieces(models) -> list[str]:
    """The pieces of both models in another order than theirs, and two language tokens."""
    readers = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in models]
    names = {reader.id_to_piece(i) for reader in readers for i in range(2, reader.get_piece_size())}
    return [*SPECIAL_PIECES, *sorted(names), ">>deu<<", ">>fra<<"]


@pytest.fixture
def made(pieces, models) -> Tokenizer:
    source = PieceVocabulary(pieces, models)
    return Tokenizer(source, source.target_view)


def segment(model: bytes, text: str) -> list[str]:
    return sentencepiece.SentencePieceProcessor(model_proto=model).encode(text, out_type=str)


def test_each_side_is_segmented_by_its_model(made, models):
    for side, texts in enumerate((ENGLISH, GERMAN)):
        view = made.sides[side]
        tokens = view.encode(texts)
        assert [[view.pieces[token] for token in row] for row in tokens] == [
            segment(models[side], t) for t in texts
        ]
        assert view.decode(tokens) == texts
    assert made.source.encode(GERMAN) != made.target.encode(GERMAN)


def test_special_tokens_are_not_shown_and_never_read_from_text(made):
    tokens = made.source.encode(["a dog", "</s> <pad><s>"])
    assert made.source.decode([[BOS, UNK, *tokens[0], EOS, PAD], []]) == ["a dog", ""]
    assert {PAD, BOS, EOS}.isdisjoint(tokens[1])


def test_a_piece_that_only_the_other_side_segments_into_is_known(made):
    assert "ä" in made.source.pieces and UNK not in made.target.encode(["ä"])[0]
    # its model has no such character
    assert made.source.encode(["ä"])[0][-1] == made.source.pieces.index("ä")
    assert made.source.encode(["犬"])[0][-1] == UNK


def test_the_token_of_a_language_stands_at_the_start_of_a_text(made):
    (dog,) = made.source.encode(["a dog"])
    french, unknown, later = made.source.encode([">>fra<< a dog", ">>xyz<<a dog", "a >>fra<< dog"])
    assert french == [made.source.pieces.index(">>fra<<"), *dog]
    assert unknown == [UNK, *dog]
    assert made.source.pieces.index(">>fra<<") not in later
    assert made.source.encode([">>fra< a dog"])[0][-len(dog) + 1 :] == dog[1:]


def test_without_a_model_a_text_is_its_pieces():
    plain = PieceVocabulary([*SPECIAL_PIECES, "▁a", "▁dog", "\u00a0"], (None, None))
    assert plain.target_view is plain
    assert plain.encode(["▁a  ▁dog", "cat ▁a", "", "\u00a0"]) == [[4, 5], [UNK, 4], [], [6]]
    assert plain.decode([[BOS, 4, UNK, 5, EOS, PAD]]) == ["▁a ▁dog"]


def test_the_views_share_one_file_and_one_fingerprint(tmp_path, made):
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.kind = "pieces"
    made.save(tmp_path)
    assert [path.name for path in tmp_path.glob("tokenizer*")] == ["tokenizer.model"]
    again = Tokenizer.load(tmp_path, config)
    assert made.is_shared and again.is_shared and again.fingerprint == made.fingerprint
    assert again.source.serialized == again.target.serialized
    assert again.target.encode(GERMAN) == made.target.encode(GERMAN)
    assert again.source.encode(ENGLISH) == made.source.encode(ENGLISH)
    assert pickle.loads(pickle.dumps(again.target)).encode(GERMAN) == made.target.encode(GERMAN)


def test_two_vocabularies_have_two_files(tmp_path, pieces, models):
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.update({"kind": "pieces", "shared": False})
    source, target = (
        PieceVocabulary(pieces, (models[0], None)),
        PieceVocabulary(pieces[:-2], (None, models[1])),
    )
    separate = Tokenizer(source, target.target_view)
    separate.save(tmp_path)
    again = Tokenizer.load(tmp_path, config)
    assert not again.is_shared and again.fingerprint == separate.fingerprint
    assert again.vocab_sizes == (len(pieces), len(pieces) - 2)
    assert again.target.decode(again.target.encode(GERMAN)) == GERMAN


def test_equal_vocabularies_that_are_not_shared_have_two_files(tmp_path, pieces, models):
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.update({"kind": "pieces", "shared": False})
    pair = [PieceVocabulary(pieces, (models[0], models[0])) for _ in range(2)]
    Tokenizer(*pair).save(tmp_path)
    assert not Tokenizer.load(tmp_path, config).is_shared


def test_it_cannot_be_trained_but_read_from_a_file(tmp_path, made):
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.kind = "pieces"
    with pytest.raises(UserError, match=r"tokenizer\.kind=pieces: .* cannot be trained"):
        tokenizer.train(config.tokenizer, None)
    (tmp_path / "pieces.json").write_bytes(made.source.serialized)
    config.tokenizer.model_file = str(tmp_path / "pieces.json")
    assert tokenizer.prepare(config, tmp_path).fingerprint == made.fingerprint


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"pieces": None},
            "its pieces must be different strings, of which the first are <pad>, <unk>, <s>, </s>",
        ),
        (
            {"pieces": "<pad>"},
            "its pieces must be different strings, of which the first are <pad>, <unk>, <s>, </s>",
        ),
        (
            {"pieces": [*SPECIAL_PIECES, 4]},
            "its pieces must be different strings, of which the first are <pad>, <unk>, <s>, </s>",
        ),
        (
            {"pieces": ["<unk>", "<pad>", "<s>", "</s>", "a"]},
            "its pieces must be different strings, of which the first are <pad>, <unk>, <s>, </s>",
        ),
        (
            {"pieces": [*SPECIAL_PIECES, "a", "b", "a"]},
            "its pieces must be different strings, of which the first are <pad>, <unk>, <s>, </s>",
        ),
        (
            {"models": [base64.b64encode(b"model").decode(), None]},
            "its SentencePiece model is damaged",
        ),
        ({"models": ["", None]}, "its SentencePiece model is damaged"),
        (
            {"models": [None, base64.b64encode(b"model").decode()]},
            "its SentencePiece model is damaged",
        ),
        ({"models": ["?", None]}, ""),
        ({"models": [None]}, ""),
        ({"models": [1, None]}, ""),
        ({"models": None}, ""),
        ({"kind": "piece"}, ""),
        ({"kind": ["pieces"]}, ""),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(changes, reason):
    content = {"kind": "pieces", "pieces": [*SPECIAL_PIECES, "a"], "models": [None, None]}
    assert vocabulary.load(json.dumps(content).encode(), "file").size == 5
    with pytest.raises(UserError) as raised:
        vocabulary.load(json.dumps(content | changes).encode(), "file")
    assert (
        str(raised.value).startswith("file: ")
        and reason in str(raised.value)
        and "\n" not in str(raised.value)
    )


def test_a_truncated_file_is_refused(made):
    content = made.source.serialized
    for length in (1, 20, len(content) // 2, len(content) - 1):
        with pytest.raises(UserError, match=r"^file: "):
            vocabulary.load(content[:length], "file")
