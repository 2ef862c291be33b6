import io
from dataclasses import dataclass

import pytest
import sentencepiece

from tests.data.files import text_config, write_pairs
from transformer.data.corpus import workers
from transformer.data.sources import source as sources
from transformer.data.tokenizers import tokenizer
from transformer.data.tokenizers import training as tokenizer_training
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary, SentencePieceVocabulary
from transformer.errors import UserError
from transformer.special_tokens import BOS, EOS, PAD, UNK

ENGLISH = ["the small dog runs", "a dog sees the small house", "the house is old", "an old dog sleeps in the house"]
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
def test_text_comes_back_and_special_ids_do_not(config, tmp_path, kind):
    made = make(config, tmp_path, kind=kind, vocab_size=40)
    ids = made.encode_target(GERMAN)
    assert made.decode_target(ids) == GERMAN
    assert made.decode_target([[BOS, *ids[0], EOS, PAD, PAD], []]) == [GERMAN[0], ""]
    assert min(min(sequence) for sequence in ids) > EOS
    assert made.target_pieces[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert "".join(made.target_pieces[id_] for id_ in ids[0]) == "▁" + GERMAN[0].replace(" ", "▁")
    assert made.source_vocab_size == made.target_vocab_size == len(made.source_pieces) <= 40


@pytest.mark.parametrize("kind", ["word", "char"])
def test_the_size_is_a_ceiling_for_words_and_characters(config, tmp_path, kind):
    text = "".join(ENGLISH + GERMAN)
    needed = {"word": len({*" ".join(ENGLISH + GERMAN).split()}), "char": len({*text})}[
        kind
    ]  # a space is the word mark
    assert make(config, tmp_path, kind=kind, vocab_size=10_000).source_vocab_size == needed + 4


def test_a_vocabulary_shared_and_not(config, tmp_path):
    config.tokenizer.shared = False
    config.tokenizer.vocab_size = 40
    separate = make(config, tmp_path)
    assert not any("ä" in piece for piece in separate.source_pieces)
    assert any("ä" in piece for piece in separate.target_pieces)
    again = Tokenizer.load(tmp_path / "workdir", config)
    assert again.fingerprint == separate.fingerprint
    assert again.encode_target(GERMAN) == separate.encode_target(GERMAN)


def test_what_is_in_the_workdir_is_used_again(config, tmp_path):
    first = make(config, tmp_path)
    (tmp_path / "train.en").unlink()
    again = make(config, tmp_path)
    assert again.fingerprint == first.fingerprint
    assert again.source is again.target


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.target.model"])
def test_of_two_vocabularies_one_that_was_deleted_is_made_again(config, tmp_path, name):
    make(config, tmp_path, shared=False)
    file = tmp_path / "workdir" / name
    content = file.read_bytes()
    file.unlink()
    make(config, tmp_path, shared=False)
    assert file.read_bytes() == content


def test_too_large_a_vocabulary_names_the_largest_that_works(config, tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size=5000: .*allows at most (\d+) bpe pieces") as raised:
        make(config, tmp_path, vocab_size=5000)
    assert not list((tmp_path / "workdir").iterdir())
    largest = int(str(raised.value).split("at most ")[1].split()[0])
    assert make(config, tmp_path, vocab_size=largest).source_vocab_size == largest


def test_too_small_a_vocabulary_names_the_smallest_that_works(config, tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size=10: .*need at least (\d+)") as raised:
        make(config, tmp_path, vocab_size=10)
    smallest = int(str(raised.value).split("at least ")[1].split(";")[0])
    assert make(config, tmp_path, vocab_size=smallest).source_vocab_size == smallest


def test_unknown_characters(config, tmp_path):
    assert UNK in make(config, tmp_path).encode_source(["a 犬"])[0]
    (tmp_path / "workdir" / "tokenizer.model").unlink()
    with_bytes = make(config, tmp_path, byte_fallback=True, vocab_size=320)
    ids = with_bytes.encode_source(["a 犬"])
    assert UNK not in ids[0] and with_bytes.decode_target(ids) == ["a 犬"]


def test_normalization_is_the_one_asked_for(config, tmp_path):
    lower = make(config, tmp_path, normalization="nmt_nfkc_cf")
    assert lower.decode_target(lower.encode_target(["Das Haus"])) == ["das haus"]


def test_a_given_model_keeps_its_pieces_and_gets_our_ids(config, tmp_path):
    content = io.BytesIO()
    # SentencePiece's own choice of ids: unknown first, no padding, and a control piece among the others.
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
    assert made.source_vocab_size == 40 - 4 + 4  # without <unk>, <s>, </s>, <x>; with the four
    ids = made.encode_source(["the old dog 犬"])[0]
    assert min(ids) == UNK
    expected = theirs.encode("the old dog 犬", out_type=str)
    assert [made.source_pieces[id_] for id_ in ids if id_ != UNK] == [p for p in expected if p != "犬"]
    assert made.decode_target(made.encode_target(GERMAN)) == GERMAN


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sampling_is_a_pure_function_of_text_and_seed(config, tmp_path, kind):
    made = make(config, tmp_path, kind=kind, subword_sampling=0.3, vocab_size=40)
    texts, seeds = ENGLISH * 5, list(range(20))
    drawn = made.encode_source_sampled(texts, seeds)
    in_other_process = list(workers.map_ordered(_Sampled(made, seeds), [texts] * 2, 2))
    assert in_other_process == [drawn, drawn]
    assert made.encode_source_sampled(texts[::-1], seeds[::-1]) == drawn[::-1]
    assert made.decode_target(drawn) == texts
    assert len({tuple(ids) for ids in drawn[::4]}) > 1  # one text, five seeds
    assert drawn != made.encode_source(texts)


@dataclass
class _Sampled:
    tokenizer: Tokenizer
    seeds: list[int]

    def __call__(self, texts):
        return self.tokenizer.encode_source_sampled(texts, self.seeds)


def test_training_text_is_a_bounded_sample_from_everywhere(tmp_path):
    pairs = [(f"a{number}", f"b{number}") for number in range(10_000)]
    write_pairs(tmp_path, "train", pairs)
    write_pairs(tmp_path, "packed", pairs, ending=".gz")
    config = text_config(tmp_path, tmp_path)
    plain = list(tokenizer_training.sample(sources.open_source(config.data, "train"), 2_500))
    config.data.train_split = "packed"
    assert list(tokenizer_training.sample(sources.open_source(config.data, "train"), 2_500)) == plain
    assert 2_400 < len(plain) <= 2_500
    assert len(set(plain)) == len(plain) and set(plain) <= set(pairs)
    places = [int(source[1:]) // 3_334 for source, _ in plain]
    assert all(abs(places.count(third) - len(plain) / 3) < 3 for third in range(3))


def test_lines_that_are_not_utf8_do_not_stop_training(config, tmp_path):
    with (tmp_path / "train.en").open("ab") as file:
        file.write(b"caf\xe9\n")
    with (tmp_path / "train.de").open("ab") as file:
        file.write("Café\n".encode())
    assert not any("é" in piece for piece in make(config, tmp_path).source_pieces)


@pytest.mark.parametrize("content", [b"", b"not a model", b"{}", b'{"size": 3'])
def test_a_damaged_model_is_named(config, tmp_path, content):
    (tmp_path / "workdir" / "tokenizer.model").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.model: not a SentencePiece model, or damaged"):
        make(config, tmp_path)


def test_a_missing_model_is_named(config, tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.model: No such file"):
        Tokenizer.load(tmp_path / "workdir", config)
    with pytest.raises(UserError, match=r"nowhere\.model: No such file"):
        make(config, tmp_path, model_file="nowhere.model")
    with pytest.raises(UserError, match="needs two, SOURCE,TARGET"):
        make(config, tmp_path, shared=False)


def test_no_text_to_train_on(config, tmp_path):
    write_pairs(tmp_path, "train", [])
    with pytest.raises(UserError, match="no training pairs"):
        make(config, tmp_path)
    write_pairs(tmp_path, "train", [("", " ")] * 3)
    with pytest.raises(UserError, match="the training text has no line to learn from") as raised:
        make(config, tmp_path)
    assert "\n" not in str(raised.value)


def test_integers(config, tmp_path):
    config.data.source, config.data.train_split = "ids", "numbers"
    write_pairs(tmp_path, "numbers", [("0 7 2", "1"), ("", "11 3")])
    made = make(config, tmp_path, kind="ids")
    assert made.source_vocab_size == made.target_vocab_size == 11 + 1 + 4
    assert made.encode_source(["0 7  11", "", "12"]) == [[4, 11, 15], [], [UNK]]
    assert made.decode_target([[BOS, 4, 11, EOS, PAD], [UNK]]) == ["0 7", "<unk>"]
    assert made.encode_source_sampled(["0 7"], [5]) == [[4, 11]]
    with pytest.raises(UserError, match="'x': tokenizer.kind=ids takes space-separated integers"):
        made.encode_source(["1 x"])


def test_integers_with_separate_vocabularies_and_a_ceiling(config, tmp_path):
    config.data.source, config.data.train_split = "ids", "numbers"
    write_pairs(tmp_path, "numbers", [("0 7 2", "1")])
    made = make(config, tmp_path, kind="ids", shared=False)
    assert (made.source_vocab_size, made.target_vocab_size) == (12, 6)
    assert isinstance(made.source, IdsVocabulary) and made.source_pieces[-1] == "7"
    (tmp_path / "workdir" / "tokenizer.model").unlink()
    with pytest.raises(UserError, match=r"vocab_size=11: the largest integer in .* is 7, which needs at least 12"):
        make(config, tmp_path, vocab_size=11)


def test_our_own_models_are_not_renumbered(config, tmp_path):
    made = make(config, tmp_path)
    plain = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "workdir" / "tokenizer.model"))
    assert made.encode_source(ENGLISH) == plain.encode(ENGLISH)
    assert isinstance(made.source, SentencePieceVocabulary)
    assert made.source_pieces == [plain.id_to_piece(id_) for id_ in range(60)]
