"""Marian's binary models, int8 matrices and shortlists: what is read, and damaged files."""

import struct

import numpy as np
import pytest

from scripts.interop import bergamot, formats, vocabularies
from tests.scripts.interop import marian_files
from tests.scripts.interop.marian_files import binary, write_binary
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, SPECIAL


@pytest.fixture
def model(tmp_path):
    return write_binary(tmp_path)


def test_int8_matrices_are_dequantized(model):
    arrays = marian_files.make_arrays({"Wemb": 30}, marian_files.SETTINGS | marian_files.SSRU)
    parameters = bergamot.read(model).parameters
    for name, marian_name in {
        "encoder.layers.0.feed_forward.inner.kernel": "encoder_l1_ffn_W1",
        "decoder.layers.1.self_attention.input.kernel": "decoder_l2_rnn_W",
        "decoder.layers.1.self_attention.forget.kernel": "decoder_l2_rnn_Wf",
    }.items():
        expected = np.clip(np.rint(arrays[marian_name] * 37.5), -127, 127) / 37.5
        np.testing.assert_allclose(parameters[name], expected, rtol=1e-6)
    # Biases and norms are float32.
    np.testing.assert_array_equal(
        parameters["decoder.layers.0.self_attention.forget.bias"], arrays["decoder_l1_rnn_bf"][0]
    )
    norm = parameters["decoder.layers.0.self_attention_connection.norm.scale"]
    np.testing.assert_array_equal(norm, arrays["decoder_l1_rnn_ffn_ln_scale"][0])
    expected = np.clip(np.rint(arrays["Wemb"][0] * 37.5), -127, 127) / 37.5  # not transposed
    np.testing.assert_allclose(parameters["decoder.embedding.table"][EOS], expected, rtol=1e-6)


def test_two_vocabularies_have_a_table_each_and_firefox_searches_greedily(tmp_path, caplog):
    arrays = marian_files.write_binary_of_two(tmp_path)
    with caplog.at_level("INFO", logger="absl"):
        model = bergamot.read(tmp_path)
    for side, stack in zip(model.tokenizer.sides, ("encoder", "decoder"), strict=True):
        ids = vocabularies.marian_side(side).ids[SPECIAL:]
        rows = np.clip(np.rint(arrays[f"{stack}_Wemb"][ids] * 37.5), -127, 127) / 37.5
        np.testing.assert_allclose(
            model.parameters[f"{stack}.embedding.table"][SPECIAL:], rows, rtol=1e-6
        )
    kernel = np.clip(np.rint(arrays["encoder_l1_ffn_W1"] * 37.5), -127, 127) / 37.5
    np.testing.assert_allclose(
        model.parameters["encoder.layers.0.feed_forward.inner.kernel"], kernel, rtol=1e-6
    )
    config = model.config  # there is no .yml
    assert (config["decoding.beam_size"], config["decoding.length_penalty"]) == (1, 1.0)
    assert config["decoding.max_length_factor"] == 2.0
    assert "the search has beam-size 1, normalize 1.0, max-length-factor 2.0" in caplog.text


def test_the_search_is_that_of_the_engine(model):
    config = bergamot.read(model.parent).config
    assert config["decoding.beam_size"] == 1
    assert (config["decoding.length_penalty_form"], config["decoding.length_penalty"]) == (
        "power",
        1.0,
    )
    assert config["decoding.max_length_factor"] == 2.5
    assert config["decoding.shortlist"] == 2  # the most translations of a token
    assert config["model.decoder_self_attention"] == "ssru"


def test_the_shortlist_is_in_our_tokens(model):
    portable = bergamot.read(model)
    ids = vocabularies.marian_side(portable.tokenizer.source).ids
    token = {id_: token for token, id_ in enumerate(ids)}
    (shortlisted,) = portable.shortlist.tokens_of(np.array([[token[2], token[3], EOS]]))
    # Token 2 translates to 5 and 9, 3 to 7; 0, 1 and 2 are frequent, and 2 and 3 may be copied.
    assert set(shortlisted) - {-1} - set(range(SPECIAL)) == {token[id_] for id_ in (2, 3, 5, 7, 9)}


def test_a_model_without_a_shortlist(model):
    next(model.parent.glob("lex*")).unlink()
    portable = bergamot.read(model)
    assert portable.shortlist is None and "decoding.shortlist" not in portable.config


def test_recognises_the_version_in_the_file(model):
    assert formats.recognise(model) == formats.recognise(model.parent) == "bergamot"
    # a model of CTranslate2
    model.write_bytes(struct.pack("<I", 6) + b"\x10\x00TransformerSpec" + bytes(40))
    assert bergamot.models_in(model) == bergamot.models_in(model.parent) == []
    with pytest.raises(UserError, match="has 0 models"):
        bergamot.read(model.parent)


def test_truncated_models_and_shortlists(model):
    lexicon = next(model.parent.glob("lex*"))
    for path in (model, lexicon):
        content = path.read_bytes()
        for size in sorted(
            {8, 12, 16, 30, 47, 48, len(content) - 1, *range(16, len(content), len(content) // 40)}
        ):
            path.write_bytes(content[:size])
            with pytest.raises(UserError, match=str(path)) as error:
                bergamot.read(model)
            assert "\n" not in str(error.value)
        path.write_bytes(content)


LARGE = 2**63 + 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<QQ", 1, LARGE), "damaged"),
        (struct.pack("<QQQQQQ", 1, 1, LARGE, 0x404, 2, 4), "damaged"),
        (struct.pack("<QQQQQQ2s", 1, 1, 2, 0x404, LARGE, 4, b"a\0"), "damaged"),
        (struct.pack("<QQQQQQ2siiQ", 1, 1, 2, 0x404, 2, LARGE, b"a\0", 1, 1, 0), "damaged"),
        (
            struct.pack("<QQQQQQ2siiQ4s", 1, 1, 2, 0x404, 2, 4, b"a\0", 2**30, 2**30, 0, b"1234"),
            "damaged",
        ),
        (
            struct.pack("<QQQQQQ2siiQ4s", 1, 1, 2, 0x404, 2, 4, b"a\0", -1, -1, 0, b"1234"),
            "damaged",
        ),
        (
            struct.pack("<QQQQQQ2siiQ4s", 1, 1, 2, 0x4102, 2, 4, b"a\0", 1, 1, 0, b"1234"),
            "damaged (no 16642)",
        ),
        (
            binary({"a": np.full((1, 1), np.inf, np.float32)}),
            "a has values that are NaN or infinite",
        ),
        (
            binary({"Wa": np.ones((1, 1), np.float32)}, {"Wa": 0.0}),
            "Wa has values that are NaN or infinite",
        ),
        (binary({"a": np.ones((1, 1), np.float32)}), "no 'special:model.yml'"),
    ],
)
def test_damaged_models_are_refused_in_one_line(model, content, message):
    model.write_bytes(content)
    with pytest.raises(UserError, match=str(model)) as error:
        bergamot.read(model)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<6Q", 7, 0, 0, 0, 0, 0), "begins with 0x7"),
        (marian_files.shortlist([[]] * 29, 2), "is for other vocabularies"),
        (marian_files.shortlist([[31], *[[]] * 29], 2), "is for other vocabularies"),
        (marian_files.shortlist([[]] * 30, 31), "is for other vocabularies"),
        (struct.pack("<6Q", bergamot.SHORTLIST_MAGIC, 0, 2, 2, 2**61, 2**62), "damaged"),
        (
            struct.pack(
                "<6Q31QI", bergamot.SHORTLIST_MAGIC, 0, 2, 2, 31, 1, 0, *[2**64 - 1] * 30, 0
            ),
            "offsets",
        ),
    ],
)
def test_damaged_shortlists_are_refused_in_one_line(model, content, message):
    next(model.parent.glob("lex*")).write_bytes(content)
    with pytest.raises(UserError, match="lex.50.50.xxyy.s2t.bin") as error:
        bergamot.read(model)
    assert message in str(error.value) and "\n" not in str(error.value)
