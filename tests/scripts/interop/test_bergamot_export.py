"""Export to Firefox's format: the bytes, the factors of activations, the shortlist, and refusals.

The files are read by the NumPy student, which shares no code with the writer.
"""

import math
import struct

import numpy as np
import pytest
import sentencepiece

from scripts.interop import bergamot, formats, marian_binary, workdirs
from scripts.interop.sentences import Sentences
from tests.scripts.interop import numpy_student
from tests.scripts.interop.marian_files import write_binary
from tests.scripts.interop.portable import make_tokenizer, random_model
from transformer.decoding.shortlist import Shortlist
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, SPECIAL

TEXTS = ("a small dog runs", "the dog sees a red ball", "two men sell a small red lamp")
WIDTH = 64
ENGINE = {
    "model__d_model": WIDTH,
    "model__d_ff": 64,
    "model__positions": "sinusoidal_marian",
    "model__decoder_start": "zero",
    "model__norm_position": "post",
    "model__layer_norm_epsilon": 1e-6,
    "model__output_bias": True,
    "model__activation": "relu",
    "decoding__length_penalty_form": "power",
}
SENTENCES = Sentences("here", list(TEXTS))


def engine_model(size: int = 24, **changes):
    """Returns a random model that the engine can decode, with outputs that end."""
    model = random_model(make_tokenizer(size), **(ENGINE | changes))
    if "output_bias" in model.parameters:
        model.parameters["output_bias"][EOS] += 6.0
    return model


@pytest.fixture(scope="module")
def model():
    model = engine_model(model__decoder_self_attention="ssru")
    # Token 7 translates to 9 and 5. Token 6 is frequent, and by its id none of the first.
    translations = np.full((24, 2), -1, np.int32)
    translations[7] = 9, 5
    frequent = np.array([4, 20], np.int32)
    return model._replace(shortlist=Shortlist(translations, frequent, 24, is_shared=True))


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    bergamot.write(model, folder, None, None, SENTENCES)
    return folder


@pytest.fixture(scope="module")
def stored(exported):
    return numpy_student.read_arrays(exported / "model.deen.intgemm.alphas.bin")


def test_the_folder_has_mozillas_names(exported):
    assert {path.name for path in exported.iterdir()} == {
        "model.deen.intgemm.alphas.bin",
        "vocab.deen.spm",
        "lex.50.50.deen.s2t.bin",
        "config.intgemm8bitalpha.yml",
    }
    assert formats.recognise(exported) == "bergamot"


def test_matrices_are_integers_of_one_factor_and_vectors_are_float32(model, exported, stored):
    kernel = model.parameters["encoder.layers.0.feed_forward.outer.kernel"]
    found = stored["encoder_l1_ffn_W2"]
    factor = 127 / abs(kernel).max()
    assert found.shape == kernel.shape and found.factor == pytest.approx(factor, rel=1e-6)
    np.testing.assert_allclose(
        numpy_student.as_factor(found) * factor, np.rint(kernel * factor), atol=1e-3
    )
    bias = model.parameters["encoder.layers.0.feed_forward.outer.bias"]
    np.testing.assert_array_equal(stored["encoder_l1_ffn_b2"].values, bias)
    assert stored["Wemb"].shape == (24, WIDTH)
    table = numpy_student.as_table(stored["Wemb"])
    processor = sentencepiece.SentencePieceProcessor(model_file=str(exported / "vocab.deen.spm"))
    piece = model.tokenizer.target.pieces[SPECIAL]
    largest = abs(model.parameters["decoder.embedding.table"]).max()
    row = model.parameters["decoder.embedding.table"][SPECIAL]
    np.testing.assert_allclose(table[processor.piece_to_id(piece)], row, atol=largest / 254 * 1.001)


def test_the_vocabulary_begins_with_the_end_and_unknown(model, exported):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(exported / "vocab.deen.spm"))
    special = processor.eos_id(), processor.unk_id(), processor.bos_id(), processor.pad_id()
    assert special == (0, 1, 22, 23)
    for text, tokens in zip(TEXTS, model.tokenizer.source.encode(list(TEXTS)), strict=True):
        pieces = [model.tokenizer.source.pieces[token] for token in tokens]
        assert processor.encode(text, out_type=str) == pieces
        assert processor.decode(processor.encode(text)) == text


def test_names_ascend_and_data_fills_blocks_of_256_bytes(exported):
    content = (exported / "model.deen.intgemm.alphas.bin").read_bytes()
    _, count = struct.unpack_from("<2Q", content)
    headers = [struct.unpack_from("<4Q", content, 16 + 32 * i) for i in range(count)]
    names = content[16 + 32 * count :].split(b"\0")[:count]
    assert names == sorted(names) and names[-1] == b"special:model.yml"
    assert all(size % 256 == 0 for _, _, _, size in headers[:-1])
    assert (len(content) - headers[-1][3]) % 256 == 0  # the first data begin at a block


def test_the_factors_are_those_of_the_largest_activations(model, stored):
    # All sentences are one batch: the encoder has one call, and its first matmuls read embeddings.
    table = model.parameters["decoder.embedding.table"]
    half = WIDTH // 2
    frequencies = np.exp(np.arange(half) * -(math.log(10_000) / (half - 1)))
    largest = 0.0
    for tokens in model.tokenizer.source.encode(list(TEXTS)):
        tokens = [*tokens, EOS]
        angles = np.arange(len(tokens))[:, None] * frequencies
        positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        largest = max(largest, abs(table[tokens] * math.sqrt(WIDTH) + positions).max())
    for name in ("Wq", "Wk", "Wv"):
        (factor,) = stored[f"encoder_l1_self_{name}_QuantMultA"].values
        assert factor == pytest.approx(127 / largest, rel=1e-4)
    # Keys and values of cross-attention read the encoder's output, the SSRU's maps one input.
    for one, other in (("context_Wk", "context_Wv"), ("rnn_W", "rnn_Wf")):
        values = [stored[f"decoder_l1_{name}_QuantMultA"].values.item() for name in (one, other)]
        assert values[0] == values[1] > 0


def test_the_factor_is_127_by_the_mean_and_1_1_deviations():
    from scripts.interop.activations import _bound

    assert _bound([1.0, 3.0]) == pytest.approx(2 + 1.1)


def test_an_imported_model_is_written_again_to_the_same_bytes(model, exported, tmp_path):
    imported = bergamot.read(exported)
    languages = {"data.source_language": "de", "data.target_language": "en"}
    imported = imported._replace(config=imported.config | languages)
    (tmp_path / "workdir").mkdir()
    workdirs.write(imported, tmp_path / "workdir")
    again = tmp_path / "again"
    again.mkdir()
    # No sentences: the factors come with the workdir.
    bergamot.write(workdirs.from_workdir(tmp_path / "workdir", "best", 1), again, None, None, None)
    for name in ("model.deen.intgemm.alphas.bin", "lex.50.50.deen.s2t.bin"):
        assert (again / name).read_bytes() == (exported / name).read_bytes()


def test_a_file_of_others_is_written_as_it_was_read(tmp_path):
    path = write_binary(tmp_path)
    written = tmp_path / "written.bin"
    written.write_bytes(marian_binary.write(marian_binary.read(path)))
    ours, theirs = numpy_student.read_arrays(written), numpy_student.read_arrays(path)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name].values, array.values)
        assert (ours[name].shape, ours[name].factor) == (array.shape, array.factor)
    again = marian_binary.write(marian_binary.read(written))
    assert again == written.read_bytes()


def test_the_shortlist_has_the_same_candidates_and_marians_checksum(model, exported):
    content = (exported / "lex.50.50.deen.s2t.bin").read_bytes()
    words = struct.unpack(f"<{len(content) // 8}Q", content[: len(content) // 8 * 8])
    total = 0
    for word in words[2:]:
        mixed = word + 0x9E3779B9 + (total << 6) + (total >> 2)
        total = (total ^ mixed) % 2**64
    assert words[1] == total

    read = bergamot.read(exported).shortlist
    source = np.array([[7, 8, EOS]])
    (ours,) = model.shortlist.tokens_of(source)
    (theirs,) = read.tokens_of(source)
    assert set(ours) == set(theirs) == {-1, *range(SPECIAL), 4, 5, 7, 8, 9, 20}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__positions": "rotary"}, "model.positions=rotary, only sinusoidal_marian"),
        ({"model__norm_position": "pre"}, "model.norm_position=pre, only post"),
        ({"model__share_embeddings": "none"}, "model.share_embeddings=none, only all, target"),
        ({"model__activation": "swiglu"}, "model.activation=swiglu, only swish, relu"),
        ({"model__d_model": 48}, "model.d_model=48, only multiples of 64"),
        ({"model__d_ff": 100}, "model.d_ff=100, only multiples of 64"),
        ({"size": 22}, "a vocabulary of 22 tokens, only multiples of 8; see tokenizer.vocab_size"),
    ],
)
def test_what_the_engine_lacks_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(UserError) as error:
        bergamot.write(engine_model(**changes), tmp_path, None, None, SENTENCES)
    assert str(error.value) == f"--format=bergamot: cannot express {message}"
    assert not list(tmp_path.iterdir())


def test_nan_is_refused_with_the_name_of_the_weight(tmp_path):
    model = engine_model()
    model.parameters["decoder.layers.0.feed_forward.inner.kernel"][0, 0] = np.nan
    with pytest.raises(UserError, match=r"decoder\.layers\.0\.feed_forward\.inner\.kernel has"):
        bergamot.write(model, tmp_path, None, None, SENTENCES)


def test_without_sentences_there_are_no_factors(tmp_path):
    with pytest.raises(UserError, match="--sentences=FILE: is missing; activations"):
        bergamot.write(engine_model(), tmp_path, None, None, None)
    assert not list(tmp_path.iterdir())
