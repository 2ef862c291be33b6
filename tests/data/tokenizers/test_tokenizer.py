"""Tokenizers: training, reading, special tokens, and errors."""

import io
from dataclasses import dataclass

import pytest
import sentencepiece

from tests.data.files import text_config, write_pairs
from tests.data.tokenizers.tiny_texts import ENGLISH
from transformer.data.sources import source as sources
from transformer.data.tokenizers import tokenizer
from transformer.data.tokenizers.byte_vocabulary import ByteVocabulary
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary, SentencePieceVocabulary
from transformer.data.tokenizers.vocabulary_training import TOKENIZERS
from transformer.support import workers
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, UNK

GERMAN = [
    "der kleine Hund läuft",
    "ein Hund sieht das kleine Haus",
    "das Haus ist alt",
    "ein alter Hund schläft im Haus",
]


@pytest.fixture
def config(tmp_path):
    """A config with a few sentences to train on, and a workdir at tmp_path/workdir."""
    (tmp_path / "workdir").mkdir()
    write_pairs(tmp_path, "train", list(zip(ENGLISH, GERMAN, strict=True)) * 5)
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.vocab_size = 60
    return config


def make(config, tmp_path, **options):
    for key, value in options.items():
        config.tokenizer[key] = value
    return tokenizer.prepare(config, tmp_path / "workdir")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_text_is_restored_and_special_tokens_are_not_shown(config, tmp_path, kind):
    made = make(config, tmp_path, kind=kind, vocab_size=40)
    tokens = made.target.encode(GERMAN)
    assert made.target.decode(tokens) == GERMAN
    assert made.target.decode([[BOS, *tokens[0], EOS, PAD, PAD], []]) == [GERMAN[0], ""]
    assert min(min(sequence) for sequence in tokens) > EOS
    assert made.target.pieces[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert "".join(made.target.pieces[token] for token in tokens[0]) == "▁" + GERMAN[0].replace(
        " ", "▁"
    )
    assert made.source.size == made.target.size == len(made.source.pieces) <= 40


@pytest.mark.parametrize("kind", ["word", "char"])
def test_the_size_is_a_maximum_for_words_and_characters(config, tmp_path, kind):
    text = "".join(ENGLISH + GERMAN)
    words = {*" ".join(ENGLISH + GERMAN).split()}
    needed = len(words if kind == "word" else {*text})  # the space is the word mark
    assert make(config, tmp_path, kind=kind, vocab_size=10_000).source.size == needed + 4


def test_separate_vocabularies_have_the_pieces_of_their_language(config, tmp_path):
    config.tokenizer.shared = False
    config.tokenizer.vocab_size = 40
    separate = make(config, tmp_path)
    assert not any("ä" in piece for piece in separate.source.pieces)
    assert any("ä" in piece for piece in separate.target.pieces)
    again = Tokenizer.load(tmp_path / "workdir", config)
    assert again.fingerprint == separate.fingerprint
    assert again.target.encode(GERMAN) == separate.target.encode(GERMAN)


def test_the_tokenizer_in_the_workdir_is_reused(config, tmp_path):
    first = make(config, tmp_path)
    (tmp_path / "train.en").unlink()
    again = make(config, tmp_path)
    assert again.fingerprint == first.fingerprint
    assert again.source is again.target


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.target.model"])
def test_one_deleted_vocabulary_of_two_is_trained_again(config, tmp_path, name):
    make(config, tmp_path, shared=False)
    file = tmp_path / "workdir" / name
    content = file.read_bytes()
    file.unlink()
    make(config, tmp_path, shared=False)
    assert file.read_bytes() == content


def test_a_vocabulary_too_large_is_refused_with_the_largest_possible_size(config, tmp_path):
    with pytest.raises(
        UserError, match=r"tokenizer\.vocab_size=5000: .*allows at most (\d+) bpe pieces"
    ) as raised:
        make(config, tmp_path, vocab_size=5000)
    assert not list((tmp_path / "workdir").iterdir())
    largest = int(str(raised.value).split("at most ")[1].split()[0])
    assert make(config, tmp_path, vocab_size=largest).source.size == largest


def test_a_vocabulary_too_small_is_refused_with_the_smallest_possible_size(config, tmp_path):
    with pytest.raises(
        UserError, match=r"tokenizer\.vocab_size=10: .*need at least (\d+)"
    ) as raised:
        make(config, tmp_path, vocab_size=10)
    smallest = int(str(raised.value).split("at least ")[1].split(";")[0])
    assert make(config, tmp_path, vocab_size=smallest).source.size == smallest


def test_unknown_characters_are_unk_or_bytes(config, tmp_path):
    assert UNK in make(config, tmp_path).source.encode(["a 犬"])[0]
    (tmp_path / "workdir" / "tokenizer.model").unlink()
    with_bytes = make(config, tmp_path, byte_fallback=True, vocab_size=320)
    tokens = with_bytes.source.encode(["a 犬"])
    assert UNK not in tokens[0] and with_bytes.target.decode(tokens) == ["a 犬"]


def test_the_configured_normalization_is_used(config, tmp_path):
    lower = make(config, tmp_path, normalization="nmt_nfkc_cf")
    assert lower.target.decode(lower.target.encode(["Das Haus"])) == ["das haus"]


def test_a_given_model_keeps_its_pieces_under_our_numbers(config, tmp_path):
    content = io.BytesIO()
    # SentencePiece's default ids: unknown first and no padding; and a control symbol.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH + GERMAN),
        model_writer=content,
        vocab_size=40,
        control_symbols="<x>",
        minloglevel=2,
    )
    (tmp_path / "given.model").write_bytes(content.getvalue())
    made = make(config, tmp_path, model_file=str(tmp_path / "given.model"))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
    assert theirs.unk_id() == 0 and theirs.pad_id() == -1
    assert made.source.size == 40 - 4 + 4  # without <unk>, <s>, </s>, <x>; with the four
    tokens = made.source.encode(["the old dog 犬"])[0]
    assert min(tokens) == UNK
    expected = theirs.encode("the old dog 犬", out_type=str)
    assert [made.source.pieces[token] for token in tokens if token != UNK] == [
        p for p in expected if p != "犬"
    ]
    assert made.target.decode(made.target.encode(GERMAN)) == GERMAN


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sampling_is_a_pure_function_of_tokens_and_seed(config, tmp_path, kind):
    made = make(config, tmp_path, kind=kind, vocab_size=40)
    texts, seeds = ENGLISH * 5, list(range(20))
    best = made.source.encode(texts)
    drawn = made.source.sample(best, seeds, 0.3)
    by_workers = list(workers.map_ordered(_Sampled(made, seeds), [best] * 2, 2))
    assert by_workers == [drawn, drawn]
    assert made.source.sample(best[::-1], seeds[::-1], 0.3) == drawn[::-1]
    assert made.target.decode(drawn) == texts
    assert len({tuple(tokens) for tokens in drawn[::4]}) > 1  # one text with five seeds
    assert drawn != best


@dataclass
class _Sampled:
    tokenizer: Tokenizer
    seeds: list[int]

    def __call__(self, sequences):
        return self.tokenizer.source.sample(sequences, self.seeds, 0.3)


def test_the_sample_of_training_text_is_bounded_and_spread_evenly(tmp_path):
    pairs = [(f"a{number}", f"b{number}") for number in range(10_000)]
    write_pairs(tmp_path, "train", pairs)
    write_pairs(tmp_path, "packed", pairs, ending=".gz")
    config = text_config(tmp_path, tmp_path)
    plain = list(sources.select_pairs(sources.open_source(config.data, "train"), 2_500))
    config.data.train_split = "packed"
    assert list(sources.select_pairs(sources.open_source(config.data, "train"), 2_500)) == plain
    assert 2_400 < len(plain) <= 2_500
    assert len(set(plain)) == len(plain) and set(plain) <= set(pairs)
    places = [int(source[1:]) // 3_334 for source, _ in plain]
    assert all(abs(places.count(third) - len(plain) / 3) < 3 for third in range(3))


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_the_vocabulary_must_have_the_separator_of_documents_and_symbols(config, tmp_path, kind):
    make(config, tmp_path, kind=kind)
    config.data.context = 1
    with pytest.raises(
        UserError, match="^config.data.context=1: the vocabulary has no token <sep>; set "
    ):
        make(config, tmp_path)
    config.data.context, config.tokenizer.user_symbols = 0, ("<name>",)
    with pytest.raises(
        UserError, match="^config.tokenizer.user_symbols: the vocabulary has no token <name>; set "
    ):
        make(config, tmp_path)
    config.data.context = 1
    (tmp_path / "workdir" / "tokenizer.model").unlink()
    assert {"<sep>", "<name>"} < set(make(config, tmp_path).source.pieces)


def test_a_file_of_bytes_has_no_segmentations_to_sample(config, tmp_path):
    path = tmp_path / "bytes.model"
    path.write_bytes(ByteVocabulary().serialized)
    make(config, tmp_path, model_file=str(path))
    with pytest.raises(UserError, match="subword_sampling: the vocabulary has one segmentation of"):
        make(config, tmp_path, model_file=str(path), subword_sampling=0.1)


def test_training_skips_pairs_that_are_not_utf8(config, tmp_path):
    with (tmp_path / "train.en").open("ab") as file:
        file.write(b"caf\xe9\n")
    with (tmp_path / "train.de").open("ab") as file:
        file.write("Café\n".encode())
    assert not any("é" in piece for piece in make(config, tmp_path).source.pieces)


@pytest.mark.parametrize("content", [b"", b"not a model", b"{}", b'{"size": 3'])
def test_a_damaged_model_is_named(config, tmp_path, content):
    (tmp_path / "workdir" / "tokenizer.model").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.model: not a SentencePiece model, or damaged"):
        make(config, tmp_path)


def test_missing_models_are_named(config, tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.model: No such file"):
        Tokenizer.load(tmp_path / "workdir", config)
    with pytest.raises(UserError, match=r"nowhere\.model: No such file"):
        make(config, tmp_path, model_file="nowhere.model")


def test_training_without_text_is_refused(config, tmp_path):
    for pairs in ([], [("", " ")] * 3):
        write_pairs(tmp_path, "train", pairs)
        with pytest.raises(
            UserError, match=r"train\.en and train\.de: no line can train"
        ) as raised:
            make(config, tmp_path)
        assert "\n" not in str(raised.value)


def test_integers_are_numbered_after_the_special_tokens(config, tmp_path):
    config.data.source, config.data.train_split = "ids", "numbers"
    write_pairs(tmp_path, "numbers", [("0 7 2", "1"), ("", "11 3")])
    made = make(config, tmp_path, kind="ids")
    assert made.source.size == made.target.size == 11 + 1 + 4
    assert made.source.encode(["0 7  11", "", "12"]) == [[4, 11, 15], [], [UNK]]
    assert made.target.decode([[BOS, 4, 11, EOS, PAD], [UNK]]) == ["0 7", "<unk>"]
    with pytest.raises(
        UserError, match="'x': tokenizer.kind=ids reads space-separated non-negative integers"
    ):
        made.source.encode(["1 x"])


def test_integers_with_separate_vocabularies_and_a_maximum(config, tmp_path):
    config.data.source, config.data.train_split = "ids", "numbers"
    write_pairs(tmp_path, "numbers", [("0 7 2", "1")])
    made = make(config, tmp_path, kind="ids", shared=False)
    assert made.vocab_sizes == (12, 6)
    assert isinstance(made.source, IdsVocabulary) and made.source.pieces[-1] == "7"
    (tmp_path / "workdir" / "tokenizer.model").unlink()
    with pytest.raises(
        UserError, match=r"vocab_size=11: the largest integer in .* is 7, which needs at least 12"
    ):
        make(config, tmp_path, vocab_size=11)


def test_models_trained_here_keep_their_ids(config, tmp_path):
    made = make(config, tmp_path)
    plain = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "workdir" / "tokenizer.model")
    )
    assert made.source.encode(ENGLISH) == plain.encode(ENGLISH)
    assert isinstance(made.source, SentencePieceVocabulary)
    assert made.source.pieces == [plain.id_to_piece(id_) for id_ in range(60)]


def test_a_kind_in_the_table_can_be_named(config, tmp_path, monkeypatch):
    def largest_only(options, source, sides):
        return IdsVocabulary(options.vocab_size)

    monkeypatch.setitem(TOKENIZERS, "largest", largest_only)
    assert make(config, tmp_path, kind="largest").vocab_sizes == (60, 60)


def test_an_unknown_kind_has_no_default(config, tmp_path):
    with pytest.raises(KeyError, match="unknown"):
        make(config, tmp_path, kind="unknown")


def test_lines_of_any_length_train_the_vocabulary(config, tmp_path):
    greek = "καλημέρα κόσμε " * 400  # 11,600 bytes; SentencePiece leaves out lines above 4,192
    write_pairs(
        tmp_path,
        "train",
        [(greek, "犬" * 70_000)] * 2 + list(zip(ENGLISH, GERMAN, strict=True)) * 5,
    )
    made = make(config, tmp_path)
    assert UNK not in made.source.encode(["καλημέρα κόσμε the dog 犬"])[0]


def test_training_on_text_in_another_encoding_names_it(config, tmp_path):
    (tmp_path / "train.de").write_bytes("für\n".encode("latin-1") * 20)
    with pytest.raises(UserError, match=r"train\.de, line 1: not UTF-8 "):
        make(config, tmp_path)


def test_training_on_text_most_of_which_is_in_another_encoding_names_it(config, tmp_path):
    (tmp_path / "train.de").write_bytes(b"ein\n" * 4 + "für\n".encode("latin-1") * 16)
    with pytest.raises(UserError, match=r"train\.de, line 5: not UTF-8 "):
        make(config, tmp_path, vocab_size=300)


@pytest.mark.parametrize(("tag", "typed"), [("[de]", "[fr]"), ("<2de>", "<2pt-BR>")])
def test_a_typed_tag_is_told_from_other_brackets(config, tmp_path, tag, typed):
    made = make(config, tmp_path, user_symbols=(tag,)).with_tag(tag)
    others = ["[1] a dog", "<b>a dog", "the dog [fr]", f"{typed[:2]}{'x' * 1000}{typed[-1]} a dog"]
    assert made.find_typed_tag(others, 1) == ""
    warning = made.find_typed_tag([*others, f" {typed} a dog"], 1)
    assert warning.startswith(f"Line 5 begins with {typed}, and ") and warning.endswith(
        f" The run has {tag}."
    )
