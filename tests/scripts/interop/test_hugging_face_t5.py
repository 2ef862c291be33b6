"""Folders of T5's family: read, written, damaged.

The slow tests compare with Transformers.
"""

import base64

import numpy as np
import pytest
import sentencepiece
from safetensors.numpy import load_file
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from scripts.interop import formats, hugging_face, hugging_face_folder, hugging_face_t5_names
from scripts.interop.portable import NEVER
from tests.scripts.interop import t5_folders as folders
from tests.scripts.interop.hugging_face_folders import write_json
from tests.scripts.interop.portable import make_tokenizer, random_model
from tests.scripts.interop.test_hugging_face import (
    change_json,
    change_weights,
    check_damage,
    logits,
    split_weights,
    truncate,
    whole_arrays,
)
from transformer.checkpoints.restore import named_leaves
from transformer.config.keys import validated_config
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, UNK
from transformer.training.state import abstract_init

TEXT = "the small house runs"
# T5's id of each of our first tokens, and of the other tokens.
FIRST = {BOS: 0, EOS: 1, UNK: 2}


@pytest.fixture
def folder(tmp_path):
    folders.write_folder(tmp_path / "t5")
    return tmp_path / "t5"


def t5_ids(size, spare):
    """Returns T5's id of each token; `spare` is that of PAD."""
    ids = [spare, FIRST[UNK], FIRST[BOS], FIRST[EOS]]
    return ids + [id_ for id_ in range(size) if id_ not in ids]


@pytest.mark.first_case
@pytest.mark.parametrize("variant", folders.VARIANTS)
def test_logits_are_those_of_the_folder(tmp_path, variant):
    weights = folders.write_folder(tmp_path / "t5", variant)
    model = hugging_face.read(tmp_path / "t5")
    size = len(weights["shared.weight"])
    ids = t5_ids(size, size - 1)
    (source,) = model.tokenizer.source.encode([TEXT])
    (target,) = model.tokenizer.target.encode(["das alte Haus"])
    theirs = [[ids[token] for token in tokens] for tokens in (source, target)]
    expected = folders.logits(weights, variant, [*theirs[0], 1], [0, *theirs[1]])
    np.testing.assert_allclose(
        logits(model, [*source, EOS], target), expected[:, ids], atol=1e-5, rtol=1e-5
    )


def test_every_tensor_has_one_parameter_and_every_row_one_token(tmp_path):
    for variant in folders.VARIANTS:
        weights = folders.write_folder(tmp_path / variant, variant, spare_rows=5)
        model = hugging_face.read(tmp_path / variant)
        pairs = list(hugging_face_t5_names.parameter_names(model.settings))
        ours, theirs = zip(*pairs, strict=True)
        assert len(set(ours)) == len(ours) and len(set(theirs)) == len(theirs)
        tables = {"shared.weight", "lm_head.weight"}
        assert {*theirs} == weights.keys() - tables
        _, shapes = abstract_init(validated_config(model.config), *model.tokenizer.vocab_sizes)
        named = named_leaves(shapes)
        assert named.keys() == model.parameters.keys() >= {*ours}
        table = model.parameters["decoder.embedding.table"] * np.sqrt(np.float32(folders.D_MODEL))
        ids = t5_ids(len(table), len(table) - 1)
        np.testing.assert_allclose(table, weights["shared.weight"][ids], rtol=2e-7)


def test_sentinels_and_rows_without_a_piece_are_tokens(tmp_path):
    folders.write_folder(tmp_path / "t5", spare_rows=4)
    vocabulary = hugging_face.read(tmp_path / "t5").tokenizer.source
    ids = t5_ids(46, 45)
    of_ids = dict(zip(ids, vocabulary.pieces, strict=True))
    assert [of_ids[id_] for id_ in range(39, 46)] == [
        *(f"\u2581<extra_id_{i}>" for i in (2, 1, 0)),
        *("<row 42>", "<row 43>", "<row 44>", "<pad>"),
    ]
    (tokens,) = vocabulary.encode([f"{TEXT} <extra_id_0> Haus <extra_id_2>"])
    plain = [vocabulary.encode([text])[0] for text in (TEXT, "Haus")]
    sentinels = [vocabulary.pieces.index(f"\u2581<extra_id_{i}>") for i in (0, 2)]
    assert tokens == [*plain[0], sentinels[0], *plain[1], sentinels[1]]
    assert vocabulary.decode([tokens]) == [f"{TEXT} <extra_id_0> Haus <extra_id_2>"]


@pytest.mark.parametrize("file", ["added_tokens.json", "tokenizer_config.json"])
def test_other_added_tokens_are_tokens_with_the_space_before_them(tmp_path, file):
    folders.write_folder(tmp_path / "t5", spare_rows=4)
    if file == "added_tokens.json":  # of Transformers before 4.34
        write_json(tmp_path / "t5" / file, {"<lang>": 42})
    else:
        sentinels = {41 - i: {"content": f"<extra_id_{i}>"} for i in range(3)}
        change_json(file, added_tokens_decoder=sentinels | {42: {"content": "<lang>"}})(
            tmp_path / "t5"
        )
    vocabulary = hugging_face.read(tmp_path / "t5").tokenizer.source
    (tokens,) = vocabulary.encode([f"<lang> {TEXT} <lang>"])
    lang = vocabulary.pieces.index("\u2581<lang>")
    assert tokens == [lang, *vocabulary.encode([TEXT])[0], lang]


def test_a_table_without_a_spare_row_gives_padding_no_probability(tmp_path):
    weights = folders.write_folder(tmp_path / "t5", spare_rows=0)
    model = hugging_face.read(tmp_path / "t5")
    assert model.settings["model.output_bias"]
    assert model.parameters["output_bias"][PAD] == NEVER
    assert not model.parameters["output_bias"][1:].any()
    (tmp_path / "again").mkdir()
    hugging_face.write(model, tmp_path / "again", None)
    assert whole_arrays(tmp_path / "again")["shared.weight"].shape == weights["shared.weight"].shape


@pytest.mark.first_case
@pytest.mark.parametrize("variant", folders.VARIANTS)
@pytest.mark.parametrize("quantization", [None, "bfloat16"])
def test_what_is_read_is_written_again(tmp_path, variant, quantization):
    weights = folders.write_folder(tmp_path / "t5", variant)
    model = hugging_face.read(tmp_path / "t5")
    exported = tmp_path / "exported"
    exported.mkdir()
    hugging_face.write(model, exported, quantization)
    written = load_file(exported / "model.safetensors")
    if variant == "a tied t5 with another matrix":  # the factor is now in the matrix
        weights["lm_head.weight"] = weights["lm_head.weight"] / np.sqrt(np.float32(folders.D_MODEL))
    assert written.keys() == weights.keys()
    for name, array in weights.items():
        if quantization:
            array = array.astype(written[name].dtype)
            assert (array != written[name]).mean() < 1e-2
        elif name == "shared.weight":
            np.testing.assert_allclose(written[name], array, rtol=2e-7)
        else:
            np.testing.assert_array_equal(written[name], array)
    again = hugging_face.read(exported)
    assert again.tokenizer.source.pieces == model.tokenizer.source.pieces
    changed = {key for key, value in again.settings.items() if value != model.settings[key]}
    assert {key for key in changed if not key.startswith("decoding.")} <= {
        "model.num_decoder_layers"
    }


def test_a_model_trained_here_is_written_and_read(tmp_path):
    changes = {
        key.replace(".", "__"): value for key, value in hugging_face_t5_names.ARCHITECTURE.items()
    }
    model = random_model(
        make_tokenizer(28), model__positions="t5", model__share_embeddings="inputs",
        model__activation="geglu", tokenizer__kind="unigram", **changes,
    )  # fmt: skip
    hugging_face.write(model, tmp_path, None)
    again = hugging_face.read(tmp_path)
    assert again.tokenizer.source.pieces == model.tokenizer.source.pieces
    assert again.tokenizer.source.encode([TEXT]) == model.tokenizer.source.encode([TEXT])
    for name, array in model.parameters.items():
        np.testing.assert_allclose(again.parameters[name], array, rtol=2e-7)


def test_weights_of_other_types_and_in_several_files_are_read(folder, tmp_path):
    model = hugging_face.read(folder)
    (tmp_path / "half").mkdir()
    hugging_face.write(model, tmp_path / "half", "float16")
    half = hugging_face.read(tmp_path / "half")
    split = hugging_face.read(split_weights(folder))
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(split.parameters[name], array)
        assert half.parameters[name].dtype == np.float32
        np.testing.assert_allclose(half.parameters[name], array, rtol=1e-3, atol=1e-6)


def test_absent_keys_have_the_defaults_of_transformers(folder):
    change_json("config.json", num_decoder_layers="absent", num_layers=1)(folder)
    second_layer = [name for name in whole_arrays(folder) if "block.1." in name]
    change_weights(**dict.fromkeys(second_layer))(folder)
    config = hugging_face.read(folder).config
    assert config["model.num_decoder_layers"] is None
    assert config["model.activation"] == "relu"
    assert config["model.layer_norm_epsilon"] == 1e-6
    for kind in ("", "attention_", "activation_", "final_"):
        assert config[f"model.{kind}dropout"] == 0.1
    assert config["decoding.max_source_length"] == 512
    assert config["decoding.beam_size"] == 1


def test_tasks_have_their_prefix_and_search(folder):
    tasks = {
        "translation_en_to_de": {
            "early_stopping": True,
            "max_length": 300,
            "num_beams": 4,
            "prefix": "translate English to German: ",
        },
        "summarization": {"prefix": "summarize: "},
    }
    change_json("config.json", task_specific_params=tasks)(folder)
    model = hugging_face.read(folder)
    assert model.directions.keys() == {"en-de"}
    task = model.directions["en-de"]
    assert task["data.source_tag"] == "translate English to German:"
    assert task["decoding.beam_size"] == 4
    assert task["decoding.stopping"] == "ended"
    assert (task["decoding.max_length_factor"], task["decoding.max_extra_length"]) == (0.0, 298)
    assert "data.source_tag" not in model.config
    # null counts as absent.
    tasks = {"translation_en_to_de": {"prefix": None, "num_beams": None}, "summarization": None}
    change_json("config.json", task_specific_params=tasks)(folder)
    assert "data.source_tag" not in hugging_face.read(folder).directions["en-de"]


def write_tokenizer_json(folder, **changes) -> None:
    """Writes a tokenizer.json in place of the SentencePiece model of a folder."""
    content = (folder / "spiece.model").read_bytes()
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    rules = ModelProto.FromString(content).normalizer_spec.precompiled_charsmap
    pieces = [[processor.id_to_piece(i), processor.get_score(i)] for i in range(39)]
    pieces += [[f"<extra_id_{i}>", 0.0] for i in (2, 1, 0)]
    added = [{"id": 41 - i, "content": f"<extra_id_{i}>"} for i in range(3)]
    charsmap = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules).decode()}
    model = {"type": "Unigram", "unk_id": 2, "vocab": pieces, "byte_fallback": False}
    content = {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [charsmap]},
        "model": model | changes.pop("model", {}),
    }
    write_json(folder / "tokenizer.json", content | changes)
    (folder / "spiece.model").unlink()


def test_the_list_of_a_byt5_tokenizer_counts_and_not_its_number(tmp_path):
    folders.write_folder(tmp_path / "model", "byt5", spare_rows=3)
    expected = hugging_face.read(tmp_path / "model").tokenizer.source
    symbols = ["<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
    assert expected.symbols == [*symbols, "<row 262>", "<row 263>"]
    tokens = dict(enumerate(["<pad>", "</s>", "<unk>"])) | dict(enumerate(symbols, 259))
    listed = {str(id_): {"content": token} for id_, token in tokens.items()}
    change_json("tokenizer_config.json", extra_ids=0, added_tokens_decoder=listed)(
        tmp_path / "model"
    )
    assert hugging_face.read(tmp_path / "model").tokenizer.source.symbols == expected.symbols
    listed["263"] = {"content": "<de>"}
    change_json("tokenizer_config.json", added_tokens_decoder=listed)(tmp_path / "model")
    vocabulary = hugging_face.read(tmp_path / "model").tokenizer.source
    assert vocabulary.symbols == [*symbols, "<row 262>", "<de>"]


NESTED_REPLACEMENT = {
    "type": "Sequence",
    "normalizers": [{"type": "Replace", "pattern": {"String": "h"}, "content": "r"}],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"unk_id": 999}}, "tokenizer.json: damaged"),
        (
            {"normalizer": {"type": "Lowercase"}},
            "tokenizer.json: normalizer=Lowercase: must be Precompiled, ",
        ),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [NESTED_REPLACEMENT]}},
            "tokenizer.json: normalizer: replaces .*, must replace spaces only",
        ),
    ],
)
def test_a_tokenizer_json_that_sentencepiece_cannot_follow_is_refused(folder, changes, message):
    write_tokenizer_json(folder, **changes)
    with pytest.raises(UserError, match=message):
        hugging_face.read(folder)


def test_pointers_to_other_weights_do_not_matter(folder):
    (folder / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert formats.recognise(folder) == "huggingface"


def test_a_tokenizer_json_is_read_like_a_sentencepiece_model(folder):
    expected = hugging_face.read(folder).tokenizer.source
    write_tokenizer_json(folder)
    vocabulary = hugging_face.read(folder).tokenizer.source
    assert vocabulary.pieces == expected.pieces
    texts = [TEXT, "\uff34he  Haus \u00e9 <extra_id_1>"]
    assert vocabulary.encode(texts) == expected.encode(texts)


def test_a_model_larger_than_memory_is_refused_before_it_is_read(folder, monkeypatch):
    memory = 4 * 4 * sum(array.size for array in whole_arrays(folder).values())
    monkeypatch.setattr(hugging_face_folder.os, "sysconf", {
        "SC_PHYS_PAGES": memory - 1, "SC_PAGE_SIZE": 1,
    }.__getitem__)  # fmt: skip
    monkeypatch.setattr(hugging_face_folder.untrusted, "read_safetensors", pytest.fail)
    with pytest.raises(UserError, match="^.*t5: has .* parameters, whose import takes"):
        hugging_face.read(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.norm", "layer_norm"),
        ("model.attention", "dot_product"),
        ("model.feed_forward_bias", True),
        ("model.share_embeddings", "none"),
        ("model.final_norm", False),
        ("tokenizer.kind", "bpe"),
    ],
)
def test_a_setting_that_the_family_lacks_is_refused(key, value, folder, tmp_path):
    model = hugging_face.read(folder)
    model = model._replace(config=model.config | {key: value})
    (tmp_path / "exported").mkdir()
    with pytest.raises(UserError, match=f"^--format=huggingface: cannot express {key}={value}, "):
        hugging_face.write(model, tmp_path / "exported", None)
    assert not any((tmp_path / "exported").iterdir())


def test_a_trained_bias_of_the_logits_is_refused(tmp_path):
    folders.write_folder(tmp_path / "t5", spare_rows=0)
    model = hugging_face.read(tmp_path / "t5")
    model.parameters["output_bias"][5] = 0.5
    with pytest.raises(UserError, match="model.output_bias=True; train with"):
        hugging_face.write(model, tmp_path, None)


def sharded_pickles(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model-00001-of-00002.bin")


DAMAGES = {
    "a relative": (
        change_json("config.json", model_type="longt5"),
        "model_type=longt5: must be one of marian, pegasus, t5, mt5, umt5",
    ),
    "an encoder alone": (
        change_json("config.json", architectures=["T5EncoderModel"]),
        "architectures=T5EncoderModel: must be a class with encoder, decoder and logits",
    ),
    "other buckets": (
        change_json("config.json", relative_attention_num_buckets=64),
        "relative_attention_num_buckets=64: must be 32",
    ),
    "a d_kv that does not fit": (
        change_json("config.json", d_kv=64),
        "SelfAttention.q.weight has 10 rows, but config.json has d_kv=64 and num_heads=2",
    ),
    "a d_model that does not fit": (
        change_json("config.json", d_model=16),
        r"has a table of shape \(43, 12\), but config.json has vocab_size=43 and d_model=16",
    ),
    "another activation": (
        change_json("config.json", feed_forward_proj="gated-mish"),
        "feed_forward_proj=gated-mish: must be one of relu, ",
    ),
    "another number of extra ids": (
        change_json("tokenizer_config.json", extra_ids=100),
        "spiece.model: has 39 pieces and 100 extra ids, which need 139 rows, but config.json has "
        "vocab_size=43",
    ),
    "a table that no model has": (
        change_json("config.json", vocab_size=10**9),
        "vocab_size=1000000000: must be a number up to 4,194,304",
    ),
    "more extra ids than any model has": (
        change_json("tokenizer_config.json", extra_ids=10**9),
        "extra_ids=1000000000: must be a number up to 4,194,304",
    ),
    "bytes for a smaller table": (
        change_json("tokenizer_config.json", tokenizer_class="ByT5Tokenizer"),
        "config.json: bytes and 3 extra ids need 262 rows, but it has vocab_size=43",
    ),
    "bytes with another end": (
        lambda folder: [
            change_json("tokenizer_config.json", tokenizer_class="ByT5Tokenizer")(folder),
            change_json("config.json", eos_token_id=3)(folder),
        ],
        "config.json: eos_token_id=3: must be 1, as ByT5Tokenizer has it",
    ),
    "another end": (change_json("config.json", eos_token_id=5), "eos_token_id=5: must be the id"),
    "a start outside the pieces": (
        change_json("generation_config.json", decoder_start_token_id=99),
        "decoder_start_token_id=99: must be the id of one of 39 pieces",
    ),
    "a start that is the end": (
        change_json("generation_config.json", decoder_start_token_id=1),
        "decoder_start_token_id=1: must be another token than eos_token_id",
    ),
    "a number of the wrong type": (
        change_json("config.json", vocab_size="43"),
        "vocab_size=43: must be a number up to",
    ),
    "no vocabulary": (
        lambda folder: (folder / "spiece.model").unlink(),
        "spiece.model: No such file",
    ),
    "a truncated vocabulary": (truncate("spiece.model"), "spiece.model: damaged"),
    "truncated weights": (truncate("model.safetensors"), "model.safetensors: damaged"),
    "a missing part of the weights": (
        lambda folder: (split_weights(folder) / "model-00002-of-00002.safetensors").unlink(),
        "model-00002-of-00002.safetensors: No such file",
    ),
    "NaN": (
        change_weights(**{"lm_head.weight": np.full((43, folders.D_MODEL), np.nan, np.float32)}),
        "lm_head.weight has values that are NaN",
    ),
    "tables that differ": (
        change_weights(
            **{"encoder.embed_tokens.weight": np.ones((43, folders.D_MODEL), np.float32)}
        ),
        "encoder.embed_tokens.weight differs from shared.weight",
    ),
    "a head for another task": (
        change_weights(**{"classification_head.dense.weight": np.ones((2, 2), np.float32)}),
        "has tensors that the model of config.json lacks .classification_head.dense.weight",
    ),
    "a missing tensor": (
        change_weights(**{"decoder.final_layer_norm.weight": None}),
        "damaged .no 'decoder.final_layer_norm.weight'",
    ),
    "parts of a pickle": (sharded_pickles, "pytorch_model-00001-of-00002.bin: is a pickle"),
    "null for the tasks": (
        change_json("config.json", task_specific_params=[1]),
        "damaged",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_line(name, folder):
    check_damage(folder, *DAMAGES[name])


def test_copies_of_the_table_and_unused_numbers_are_accepted(folder):
    expected = hugging_face.read(folder).parameters
    shared = whole_arrays(folder)["shared.weight"]
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    unused = {hugging_face_t5_names.UNUSED: np.ones((32, 2), np.float32)}
    change_weights(**dict.fromkeys(copies, shared), **unused)(folder)
    again = hugging_face.read(folder).parameters
    assert again.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(again[name], array)
