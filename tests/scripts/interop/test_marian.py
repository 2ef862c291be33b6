"""Marian's .npz models: the parameters that they become, and models and files that are refused."""

import json

import numpy as np
import pytest
import sentencepiece

from scripts.interop import formats, marian, workdirs
from tests.scripts.interop import marian_files
from tests.scripts.interop.marian_files import PRE_NORM, SSRU, TEXTS, write_npz
from tests.scripts.interop.portable import make_tokenizer, random_model
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, UNK

MARIAN_OPTIONS = {
    "model__positions": "sinusoidal_marian",
    "model__decoder_start": "zero",
    "decoding__length_penalty_form": "power",
}


def test_every_array_becomes_a_parameter(tmp_path):
    arrays = dict(np.load(write_npz(tmp_path)))
    model = marian.read(tmp_path)
    parameters = model.parameters
    processor = sentencepiece.SentencePieceProcessor(model_proto=marian_files.vocabulary())
    table, bias = parameters["decoder.embedding.table"], parameters["output_bias"]
    for text in TEXTS[:5]:
        (tokens,) = model.tokenizer.source.encode([text])
        ids = processor.encode(text)
        np.testing.assert_array_equal(table[tokens], arrays["Wemb"][ids])
        np.testing.assert_array_equal(bias[tokens], arrays["decoder_ff_logit_out_b"][0, ids])
    np.testing.assert_array_equal(table[[EOS, UNK]], arrays["Wemb"][:2])
    assert not table[[PAD, BOS]].any() and (bias[[PAD, BOS]] == -100).all()
    expected = {
        "encoder.layers.0.self_attention.query.kernel": "encoder_l1_self_Wq",
        "encoder.layers.0.self_attention_connection.norm.scale": "encoder_l1_self_Wo_ln_scale",
        "decoder.layers.1.cross_attention.value.bias": "decoder_l2_context_bv",
        "decoder.layers.1.cross_attention_connection.norm.bias": "decoder_l2_context_Wo_ln_bias",
        "decoder.layers.0.feed_forward.inner.kernel": "decoder_l1_ffn_W1",
        "decoder.layers.0.feed_forward.outer.bias": "decoder_l1_ffn_b2",
        "decoder.layers.0.feed_forward_connection.norm.scale": "decoder_l1_ffn_ffn_ln_scale",
    }
    for name, marian_name in expected.items():
        value = arrays[marian_name] if name.endswith("kernel") else arrays[marian_name][0]
        np.testing.assert_array_equal(parameters[name], value)
    assert len(parameters) == len(arrays) - 1  # all but the settings


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("settings", "tables", "share"),
    [
        ({}, {"Wemb": 30}, "all"),
        (SSRU, {"Wemb": 30}, "all"),
        (PRE_NORM | SSRU, {"Wemb": 30}, "all"),
        (
            {"tied-embeddings-all": False, "tied-embeddings": True},
            {"encoder_Wemb": 30, "decoder_Wemb": 30},
            "target",
        ),
        (
            PRE_NORM | SSRU | {"tied-embeddings-all": False},
            {"encoder_Wemb": 30, "decoder_Wemb": 30, "decoder_ff_logit_out_Wt": 30},
            "none",
        ),
    ],
)
def test_a_model_of_any_kind_fits_its_configuration_and_survives_export(
    tmp_path, settings, tables, share
):
    write_npz(
        tmp_path, tables, **{name.replace("-", "_"): value for name, value in settings.items()}
    )
    model = marian.read(tmp_path)
    assert model.config["model.share_embeddings"] == share
    languages = {"data.source_language": "en", "data.target_language": "de"}
    model.config.update(languages)
    (tmp_path / "workdir").mkdir()
    workdirs.write(model, tmp_path / "workdir")  # checks names and shapes
    exported = tmp_path / "exported"
    exported.mkdir()
    marian.write(workdirs.from_workdir(tmp_path / "workdir", "best", 1), exported, None)
    again = marian.read(exported)
    assert again.config | languages == model.config
    assert again.parameters.keys() == model.parameters.keys()
    for name, value in model.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], value, err_msg=name)


def test_a_decoder_that_marian_decodes_otherwise_than_it_trains_is_not_exported(tmp_path):
    model = marian.read(
        write_npz(tmp_path, **{name.replace("-", "_"): value for name, value in PRE_NORM.items()})
    )
    with pytest.raises(UserError, match="cannot express model.norm_position=pre, only post"):
        marian.write(model, tmp_path, None)


def test_the_settings_of_the_search_are_those_of_decoder_yml_or_marians_defaults(tmp_path):
    model = write_npz(tmp_path)
    assert marian.read(model).config["decoding.beam_size"] == 12
    text = (
        "beam-size: 5\nnormalize: 0.6\nmax-length-factor: 2.5\n"
        "vocabs: [/train/vocab.spm, /train/vocab.spm]\n"
    )
    (tmp_path / "model.npz.decoder.yml").write_text(text)
    config = marian.read(model).config
    assert {key: value for key, value in config.items() if key.startswith("decoding")} == {
        "decoding.beam_size": 5,
        "decoding.length_penalty_form": "power",
        "decoding.shrinking_beam": True,
        "decoding.stopping": "ended",
        "decoding.length_penalty": 0.6,
        "decoding.max_length_factor": 2.5,
        "decoding.max_extra_length": 2,
        "decoding.forbid_unk": True,
    }
    (tmp_path / "model.npz.decoder.yml").write_text("word-penalty: 0.1\n")
    with pytest.raises(UserError, match="word-penalty=0.1, must be"):
        marian.read(model)


def test_lists_of_pieces(tmp_path):
    write_npz(
        tmp_path,
        {"encoder_Wemb": 5, "decoder_Wemb": 4},
        tied_embeddings_all=False,
        tied_embeddings=True,
    )
    (tmp_path / "vocab.spm").unlink()
    (tmp_path / "srcvocab.yml").write_text('"</s>": 0\n"<unk>": 1\nno: 4\n"b": 2\n1: 3\n')
    (tmp_path / "trgvocab.yml").write_text('"x": 0\n"<unk>": 1\n"y": 2\n"</s>": 3\n')
    model, arrays = marian.read(tmp_path), np.load(tmp_path / "model.npz")
    assert model.config["tokenizer.kind"] == "pieces"
    tokens = model.tokenizer.source.encode(["no 1 b"])[0]
    np.testing.assert_array_equal(
        model.parameters["encoder.embedding.table"][tokens], arrays["encoder_Wemb"][[4, 3, 2]]
    )
    table = model.parameters["decoder.embedding.table"]
    np.testing.assert_array_equal(
        table[model.tokenizer.target.encode(["y x"])[0]], arrays["decoder_Wemb"][[2, 0]]
    )
    np.testing.assert_array_equal(table[[EOS, UNK]], arrays["decoder_Wemb"][[3, 1]])

    (tmp_path / "a.src.vocab").write_text("</s>\n<unk>\nb\n1\nno\n")
    (tmp_path / "a.trg.vocab").write_text("x\n<unk>\ny\n</s>\n")
    (tmp_path / "model.npz.decoder.yml").write_text("vocabs: [a.src.vocab, a.trg.vocab]\n")
    again = marian.read(tmp_path)
    assert [side.pieces for side in again.tokenizer.sides] == [
        side.pieces for side in model.tokenizer.sides
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "s2s"}, "type='s2s' cannot be expressed here"),
        ({"type": "multi-transformer"}, "type='multi-transformer'"),
        (
            {"transformer_decoder_autoreg": "average-attention"},
            "transformer-decoder-autoreg='average-attention'",
        ),
        (
            {"transformer_decoder_autoreg": "rnn"},
            "dec-cell='gru' cannot be expressed here, only 'ssru'",
        ),
        ({"transformer_ffn_activation": "gelu"}, "transformer-ffn-activation='gelu'"),
        ({"transformer_postprocess": "dhn"}, "'dhn'"),
        (
            {"transformer_disable_position_embeddings": True},
            "transformer-disable-position-embeddings=True",
        ),
        ({"enc_depth": 10**12}, "enc-depth=1000000000000 must be an integer from 1 to"),
        ({"dim_emb": "wide"}, "dim-emb='wide'"),
        ({"enc_depth": 2}, "lacks encoder_l2_ffn_W1"),
        ({"extra_array": np.zeros((1, 1), np.float32)}, "has extra_array"),
        (
            {"encoder_l1_ffn_W1": np.full((4, 6), np.nan, np.float32)},
            "encoder_l1_ffn_W1 has values that are NaN",
        ),
        ({"encoder_l1_ffn_b1": np.zeros((2, 6), np.float32)}, "encoder_l1_ffn_b1 has the shape"),
        ({"special:model.yml": np.frombuffer(b"type: [", np.int8)}, "damaged"),
        ({"special:model.yml": np.frombuffer(b"\xff\xfe", np.int8)}, "damaged"),
        ({"size": 25}, "Wemb has 30 tokens, and the vocabulary 25"),
    ],
)
def test_what_cannot_be_expressed_or_is_damaged_is_refused_in_one_line(tmp_path, changes, message):
    with pytest.raises(UserError, match=str(tmp_path)) as error:
        marian.read(write_npz(tmp_path, **changes))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_truncated_files(tmp_path):
    path = write_npz(tmp_path)
    content = path.read_bytes()
    for size in range(0, len(content), len(content) // 25):
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match=str(path)):
            marian.read(path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vocab.spm", b"damaged", "vocab.spm: "),
        ("vocab.spm", b'{"kind": "ids", "size": 30}', "vocab.spm: "),
        ("vocab.fr.spm", b"", "has the vocabularies vocab.fr.spm, vocab.spm; it must have one"),
        ("decoder.yml", b"vocabs: [missing.spm, vocab.spm]", "missing.spm"),
        ("decoder.yml", b"vocabs: 3", "damaged"),
        ("decoder.yml", b"beam-size: [1]", "damaged"),
        ("decoder.yml", b"a: &a [1]\nb: *a", "decoder.yml: damaged"),
        (
            "model.iter100.npz",
            b"",
            "has 2 models (model.iter100.npz, model.npz); name the file of one",
        ),
    ],
)
def test_damaged_folders(tmp_path, file, content, message):
    write_npz(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError) as error:
        marian.read(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ['"a": 0\n"b": 1\n', '"</s>": 0\n"<unk>": 2\n', '"</s>": 0\n"<unk>": a\n', "- a\n", "?"]
)
def test_damaged_lists_of_pieces(tmp_path, text):
    write_npz(tmp_path)
    (tmp_path / "vocab.spm").unlink()
    (tmp_path / "vocab.yml").write_text(text)
    with pytest.raises(UserError, match="vocab.yml"):
        marian.read(tmp_path)


def test_recognises_models_by_their_files(tmp_path):
    path = write_npz(tmp_path)
    assert formats.recognise(tmp_path) == formats.recognise(path) == "marian"
    # the state of Marian's optimizer
    (tmp_path / "model.npz.optimizer.npz").write_bytes(path.read_bytes())
    assert formats.recognise(tmp_path) == "marian"
    (tmp_path / "vocab.spm").unlink()
    with pytest.raises(UserError, match="has the vocabularies none; it must have one"):
        marian.read(tmp_path)


@pytest.mark.parametrize(
    "key_value",
    [
        {"model__decoder_start": "bos"},
        {"model__positions": "rotary"},
        {"model__activation": "swiglu"},
        {"model__layer_norm_epsilon": 1e-5},
        {"model__attention": "dot_product_unscaled"},
        {"model__d_k": 8},
        {"tokenizer__kind": "pieces"},
    ],
)
def test_export_names_the_setting_that_marian_lacks(tmp_path, key_value):
    model = random_model(make_tokenizer(26), **(MARIAN_OPTIONS | key_value))
    with pytest.raises(UserError, match=next(iter(key_value)).replace("__", ".")):
        marian.write(model, tmp_path, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sides", [1, 2])
def test_export_of_a_model_of_this_project(tmp_path, sides):
    share = "all" if sides == 1 else "none"
    model = random_model(
        make_tokenizer(*(26, 27)[:sides]), **MARIAN_OPTIONS, model__share_embeddings=share
    )
    marian.write(model, tmp_path, None)
    again = marian.read(tmp_path)
    assert again.tokenizer.fingerprint == model.tokenizer.fingerprint
    # also the rows of PAD and BOS, which these vocabularies have
    for name, value in model.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], value, err_msg=name)
    for name in again.parameters.keys() - model.parameters.keys():
        assert name.endswith("bias") and not again.parameters[name].any()
    search = dict(
        line.split(": ", 1) for line in (tmp_path / "decoder.yml").read_text().splitlines()
    )
    assert len(set(json.loads(search["vocabs"]))) == sides
