"""Folders of Hugging Face's MarianMTModel: read, written, damaged.

The slow tests compare with Transformers.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from configs import base
from scripts.interop import hugging_face, hugging_face_export
from scripts.interop.portable import NEVER, PortableModel
from tests.scripts.interop import hugging_face_folders as folders
from tests.scripts.interop.portable import make_tokenizer, random_model
from transformer.checkpoints.restore import named_leaves
from transformer.config.loading import with_values
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from transformer.training.state import abstract_init

TEXT = "the small house runs"


@pytest.fixture
def folder(tmp_path):
    folders.write_folder(tmp_path / "opus")
    return tmp_path / "opus"


@pytest.fixture(scope="module")
def tokenizers():
    return make_tokenizer(24, texts=folders.ENGLISH), make_tokenizer(24, 24, texts=folders.ENGLISH)


def logits(model: PortableModel, source: list[int], target: list[int]) -> np.ndarray:
    """Returns the logits (T, V) after BOS and each token of the target."""
    config = with_values(base.get_config(), model.config | {"model.dtype": "float32"})
    graph, tree = abstract_init(config, *model.tokenizer.vocab_sizes)
    leaves = [jnp.asarray(model.parameters[name]) for name in named_leaves(tree)]
    module = nnx.merge(graph, nnx.State(jax.tree.unflatten(jax.tree.structure(tree), leaves)))
    return np.asarray(module(jnp.array([source]), jnp.array([[BOS, *target]])))[0]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("is_shared", "is_tied"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_logits_are_those_of_the_folder(tmp_path, is_shared, is_tied):
    weights = folders.write_folder(tmp_path / "opus", is_shared=is_shared, is_tied=is_tied)
    model = hugging_face.read(tmp_path / "opus")
    source, target = (
        model.tokenizer.source.encode([TEXT])[0],
        model.tokenizer.target.encode(["das alte Haus"])[0],
    )
    names = ["vocab.json"] * 2 if is_shared else ["vocab.json", "target_vocab.json"]
    foreign = [json.loads((tmp_path / "opus" / name).read_text()) for name in names]
    theirs = [
        [vocabulary[side.pieces[token]] for token in tokens]
        for vocabulary, side, tokens in zip(
            foreign, model.tokenizer.sides, (source, target), strict=True
        )
    ]
    expected = folders.logits(weights, [*theirs[0], 0], [foreign[1]["<pad>"], *theirs[1]])
    ours = logits(model, [*source, EOS], target)
    order = [foreign[1][piece] for piece in model.tokenizer.target.pieces if piece != "<s>"]
    np.testing.assert_allclose(np.delete(ours, BOS, axis=1), expected[:, order], atol=1e-5)
    assert (ours[:, BOS] == NEVER).all() or not is_tied
    shares = {(True, True): "all", (False, True): "target"}
    assert model.config["model.share_embeddings"] == shares.get((is_shared, is_tied), "none")


def test_settings_vocabulary_and_language_tokens(folder):
    model = hugging_face.read(folder)
    assert model.config["decoding.beam_size"] == 3
    assert model.config["decoding.length_penalty"] == 1.5
    assert (model.config["decoding.min_length"], model.config["decoding.no_repeat_ngram"]) == (0, 0)
    assert model.config["data.target_language"] == "deu"
    assert model.config["model.decoder_start"] == "zero"
    source, target = model.tokenizer.sides
    assert tuple(source.pieces[:4]) == SPECIAL_PIECES
    tokens = source.encode([f">>fra<< {TEXT}"])[0]
    assert source.pieces[tokens[0]] == ">>fra<<"
    assert tokens[1:] == source.encode([TEXT])[0]
    assert target.decode([target.encode(["das kleine Haus"])[0]]) == ["das kleine Haus"]


def test_a_start_that_is_no_zero_vector_becomes_bos(tmp_path):
    weights = folders.write_folder(tmp_path / "opus", decoder_start_token_id=0)
    model = hugging_face.read(tmp_path / "opus")
    table = model.parameters["decoder.embedding.table"]
    assert model.config["model.decoder_start"] == "bos"
    np.testing.assert_array_equal(table[BOS], weights["model.shared.weight"][0])
    np.testing.assert_array_equal(table[EOS], table[BOS])
    assert model.parameters["output_bias"][BOS] == NEVER


def test_embeddings_that_are_not_scaled(tmp_path):
    folders.write_folder(tmp_path / "scaled", is_shared=False, is_tied=False)
    weights = folders.write_folder(
        tmp_path / "opus", is_shared=False, is_tied=False, scale_embedding=False
    )
    for name in ("encoder", "decoder"):
        weights[f"model.{name}.embed_tokens.weight"] *= np.sqrt(np.float32(folders.D_MODEL))
    folders.write_safetensors(tmp_path / "opus" / "model.safetensors", weights)
    scaled, plain = (hugging_face.read(tmp_path / name) for name in ("scaled", "opus"))
    for name, array in scaled.parameters.items():
        np.testing.assert_allclose(plain.parameters[name], array, rtol=1e-6)


def whole_arrays(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


EXACT = {
    "one table": {"model__positions": "sinusoidal_concatenated", "model__attention_bias": True},
    "marian's positions": {"model__positions": "sinusoidal_marian", "model__attention_bias": True},
    "a start from zero": {
        "model__positions": "sinusoidal_concatenated",
        "model__attention_bias": True,
        "model__decoder_start": "zero",
    },
    "two vocabularies": {
        "tokenizer__shared": False,
        "model__positions": "sinusoidal_concatenated",
        "model__attention_bias": True,
        "model__share_embeddings": "target",
        "model__activation": "swish",
        "model__output_bias": True,
    },
    "no table is shared": {
        "tokenizer__shared": False,
        "model__positions": "sinusoidal_concatenated",
        "model__attention_bias": True,
        "model__share_embeddings": "none",
        "model__decoder_start": "zero",
        "model__num_decoder_layers": 2,
    },
    "pre-norm": {
        "model__positions": "sinusoidal_concatenated",
        "model__attention_bias": True,
        "model__norm_position": "pre",
        "model__activation": "gelu_exact",
    },
    "pre-norm with two tables": {
        "model__positions": "sinusoidal_marian",
        "model__attention_bias": True,
        "model__norm_position": "pre",
        "model__share_embeddings": "target",
    },
}


@pytest.mark.first_case
@pytest.mark.parametrize("name", EXACT)
def test_what_is_written_is_read_bit_for_bit(name, tmp_path, tokenizers):
    tokenizer = tokenizers["tokenizer__shared" in EXACT[name]]
    search = {"decoding__min_length": 3, "decoding__no_repeat_ngram": 2}
    model = random_model(tokenizer, model__layer_norm_epsilon=1e-5, **search, **EXACT[name])
    if name == "no table is shared":  # nothing reads this vector: the decoder starts from zero
        model.parameters["decoder.embedding.table"][BOS] = model.parameters["projection.kernel"][
            :, BOS
        ]
    hugging_face_export.write(model, tmp_path, None)
    again = hugging_face.read(tmp_path)
    assert again.parameters.keys() == model.parameters.keys()
    for parameter, array in model.parameters.items():
        np.testing.assert_array_equal(again.parameters[parameter], array)
    changed = {key for key, value in again.settings.items() if value != model.settings[key]}
    assert changed <= {
        "model.dtype",
        "model.num_decoder_layers",
        "tokenizer.kind",
        "tokenizer.shared",
    } | {key for key in changed if key.startswith("decoding.")}
    assert (again.settings["decoding.min_length"], again.settings["decoding.no_repeat_ngram"]) == (
        3,
        2,
    )
    # The classes count the token from which decoding starts.
    assert json.loads((tmp_path / "generation_config.json").read_text())["min_length"] == 4
    assert [side.pieces for side in again.tokenizer.sides] == [
        side.pieces for side in tokenizer.sides
    ]


@pytest.mark.slow
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_alternating_positions_and_absent_biases_keep_the_logits(
    norm_position, tmp_path, tokenizers
):
    model = random_model(
        tokenizers[0], model__layer_norm_epsilon=1e-5, model__norm_position=norm_position
    )
    hugging_face_export.write(model, tmp_path, None)
    again = hugging_face.read(tmp_path)
    assert again.config["model.positions"] == "sinusoidal_concatenated"
    source = model.tokenizer.source.encode([TEXT])[0]
    np.testing.assert_allclose(
        logits(again, source, source), logits(model, source, source), atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("bias", [None, NEVER])
def test_a_start_from_zero_survives_fine_tuning(tmp_path, tokenizers, bias):
    """The row of BOS gets gradients from tied logits; the decoder does not read it."""
    zero = {"model__layer_norm_epsilon": 1e-5, "model__decoder_start": "zero"}
    model = random_model(tokenizers[0], model__output_bias=bias is not None, **zero)
    if bias is not None:
        model.parameters["output_bias"][BOS] = bias
    hugging_face_export.write(model, tmp_path, None)
    again = hugging_face.read(tmp_path)
    assert again.config["model.decoder_start"] == "zero"
    source = model.tokenizer.source.encode([TEXT])[0]
    ours, theirs = (jax.nn.softmax(logits(some, source, source)) for some in (model, again))
    np.testing.assert_allclose(theirs, ours, atol=1e-6)
    has_one_table = load_file(tmp_path / "model.safetensors").keys() >= {"model.shared.weight"}
    assert has_one_table == (bias is not None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.positions", "rotary"),
        ("model.positions", "learned"),
        ("model.activation", "swiglu"),
        ("model.attention", "additive"),
        ("model.decoder_self_attention", "ssru"),
        ("model.d_k", 8),
        ("model.final_norm", True),
        ("model.source_eos", False),
        ("data.context", 2),
    ],
)
def test_a_setting_that_no_class_has_is_refused(key, value, tmp_path, tokenizers):
    model = random_model(tokenizers[0], **{key.replace(".", "__"): value})
    with pytest.raises(
        UserError, match=f"^--format=huggingface: cannot express {key}={value}, only "
    ):
        hugging_face_export.write(model, tmp_path, None)
    assert not any(tmp_path.iterdir())


def test_a_tag_of_the_sentencepiece_model_is_refused(tmp_path):
    tokenizer = make_tokenizer(30, user_symbols=[">>de<<"])
    with pytest.raises(
        UserError, match="^--format=huggingface: cannot express >>de<< in a SentencePiece model$"
    ):
        hugging_face_export.write(random_model(tokenizer), tmp_path, None)


def test_pre_norm_needs_one_vocabulary(tmp_path, tokenizers):
    changes = {
        "tokenizer__shared": False,
        "model__norm_position": "pre",
        "model__share_embeddings": "target",
    }
    model = random_model(tokenizers[1], **changes)
    with pytest.raises(UserError, match="cannot express tokenizer.shared=False, only True"):
        hugging_face_export.write(model, tmp_path, None)


def change_json(name, **changes):
    def change(folder):
        content = json.loads((folder / name).read_text())
        folders.write_json(
            folder / name, {k: v for k, v in (content | changes).items() if v != "absent"}
        )

    return change


def change_weights(**changes):
    """Returns a function that changes arrays of a folder. None removes an array."""

    def change(folder):
        arrays = whole_arrays(folder) | changes
        folders.write_safetensors(
            folder / "model.safetensors",
            {name: array for name, array in arrays.items() if array is not None},
        )

    return change


def check_damage(folder, damage, message):
    """Damages a folder, and asserts that reading it raises one line that begins with its path."""
    damage(folder)
    assert hugging_face.recognises(folder)
    with pytest.raises(UserError, match=message) as caught:
        hugging_face.read(folder)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(folder))


def only_a_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def truncate(name):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return change


def float_ids(folder):
    vocabulary = json.loads((folder / "vocab.json").read_text())
    folders.write_json(
        folder / "vocab.json", {piece: float(id_) for piece, id_ in vocabulary.items()}
    )


def byte_order_mark(name):
    return lambda folder: (folder / name).write_bytes(
        b"\xef\xbb\xbf" + (folder / name).read_bytes()
    )


def pointer(name):
    return lambda folder: (folder / name).write_text(
        "version https://git-lfs.github.com/spec/v1\nsize 5\n"
    )


def split_weights(folder):
    """Writes the weights in two parts, as Transformers does with large models, and returns the
    folder.
    """
    arrays = sorted(whole_arrays(folder).items())
    (folder / "model.safetensors").unlink()
    file_of = {}
    for number, part in enumerate((arrays[::2], arrays[1::2]), start=1):
        name = f"model-{number:05}-of-00002.safetensors"
        folders.write_safetensors(folder / name, dict(part))
        file_of |= dict.fromkeys(dict(part), name)
    index = {"metadata": {"total_size": 1}, "weight_map": file_of}
    folders.write_json(folder / "model.safetensors.index.json", index)
    return folder


def test_weights_in_several_files_are_read(folder):
    whole = hugging_face.read(folder).parameters
    split = hugging_face.read(split_weights(folder)).parameters
    assert split.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(split[name], array)


def test_nulls_are_absent_settings(folder):
    change_json("generation_config.json", num_beams=None, length_penalty=None, max_length=None)(
        folder
    )
    change_json("tokenizer_config.json", model_max_length=None, source_lang=None)(folder)
    config = hugging_face.read(folder).config
    assert (config["decoding.beam_size"], config["decoding.length_penalty"]) == (1, 1.0)
    assert "data.source_language" not in config


@pytest.mark.parametrize(
    ("early_stopping", "stopping"),
    [(True, "ended"), (False, "current"), (None, "current"), ("never", "bound")],
)
def test_the_rule_that_ends_a_search_is_that_of_the_folder(
    folder, tmp_path, early_stopping, stopping
):
    change_json("generation_config.json", early_stopping=early_stopping)(folder)
    model = hugging_face.read(folder)
    assert model.config["decoding.stopping"] == stopping
    (tmp_path / "exported").mkdir()
    hugging_face_export.write(model, tmp_path / "exported", None)
    exported = json.loads((tmp_path / "exported" / "generation_config.json").read_text())
    assert exported["early_stopping"] == (early_stopping or False)


def test_single_banned_tokens_are_taken_and_settings_that_are_not_are_listed_once(folder, caplog):
    vocabulary = json.loads((folder / "vocab.json").read_text())
    banned = sorted(piece for piece in vocabulary if len(piece) == 2)[:2]
    ids = [vocabulary[piece] for piece in banned]
    words = [[vocabulary["<pad>"]], [vocabulary["<unk>"]], ids[:1]]
    assert hugging_face.read(folder).config["decoding.banned_pieces"] == () and not caplog.messages
    change_json("generation_config.json", bad_words_ids=words, suppress_tokens=ids[1:])(folder)
    model = hugging_face.read(folder)
    assert sorted(model.config["decoding.banned_pieces"]) == banned and not caplog.messages
    settings = {
        "bad_words_ids": [[4, 5]],
        "max_length": 100,
        "repetition_penalty": "1.2",
        "do_sample": True,
    }
    change_json("generation_config.json", **settings, top_k=50, early_stopping=True)(folder)
    hugging_face.read(folder)
    assert caplog.messages == [
        f"{folder / 'generation_config.json'}: the search here does not take max_length=100, "
        "do_sample=True, repetition_penalty=1.2, bad_words_ids=[[4, 5]]."
    ]


DAMAGES = {
    "another architecture": (
        change_json("config.json", model_type="m2m_100"),
        "model_type=m2m_100: must be one of mar",
    ),
    "no architecture": (
        change_json("config.json", model_type="absent"),
        "model_type=None: must be one of marian, pegasus",
    ),
    "an activation": (
        change_json("config.json", activation_function="mish"),
        "must be one of silu, ",
    ),
    "widths that differ": (
        change_json("config.json", decoder_ffn_dim=4),
        "encoder_ffn_dim and decoder_ffn_dim differ",
    ),
    "text for a number": (
        change_json("config.json", d_model="8"),
        "config.json: config.model.d_model=8: must be ",
    ),
    "a list for a number": (
        change_json("config.json", encoder_layers=[1]),
        "config.json: config.model.num_layers=",
    ),
    "a missing key": (
        change_json("config.json", d_model="absent"),
        "config.json: damaged .*d_model",
    ),
    "more layers than arrays": (
        change_json("config.json", encoder_layers=2_000_000_000),
        "damaged .*encoder.layers.1",
    ),
    "a start outside the table": (
        change_json("config.json", decoder_start_token_id=99),
        "decoder_start_token_id=99",
    ),
    "a start of another type": (
        change_json("config.json", decoder_start_token_id=[1]),
        "config.json: decoder_start_token_id=.1.: must be the id of one of ",
    ),
    "a negative start": (
        change_json("config.json", decoder_start_token_id=-1),
        "config.json: decoder_start_token_id=",
    ),
    "no start": (
        change_json("config.json", decoder_start_token_id=None),
        "config.json: damaged .*decoder_start_to",
    ),
    "another end": (
        change_json("config.json", eos_token_id=3),
        "config.json: eos_token_id=3: must be 0, the id of </s>",
    ),
    "JSON that is a list": (
        lambda folder: folders.write_json(folder / "config.json", []),
        "config.json: damaged",
    ),
    "truncated JSON": (truncate("vocab.json"), "vocab.json: damaged"),
    "truncated weights": (truncate("model.safetensors"), "model.safetensors: damaged"),
    "a truncated SentencePiece model": (
        truncate("source.spm"),
        "opus.*SentencePiece model is damaged",
    ),
    "no SentencePiece model": (
        lambda folder: (folder / "target.spm").unlink(),
        "target.spm: No such file",
    ),
    "a piece more than rows": (
        change_json("vocab.json", new=999),
        "vocab.json: the ids of its .* must be the integers",
    ),
    "ids of another type": (
        change_json("vocab.json", new="1"),
        "vocab.json: the ids of its .* must be the integers 0",
    ),
    "an id that is null": (
        change_json("vocab.json", new=None),
        "vocab.json: the ids of its .* must be the integers 0",
    ),
    "float ids": (float_ids, "vocab.json: the ids of its .* must be the integers 0"),
    "null for a size": (
        change_json("config.json", d_model=None),
        "config.json: damaged .no 'd_model'",
    ),
    "text for a count of beams": (
        change_json("generation_config.json", num_beams="4"),
        "generation_config.json: config.decoding.beam_size=4: must be an integer",
    ),
    "another rule of stopping": (
        change_json("generation_config.json", early_stopping="often"),
        "generation_config.json: damaged .no 'often'",
    ),
    "text for a length": (
        change_json("tokenizer_config.json", model_max_length="5"),
        "tokenizer_config.json: damaged",
    ),
    "a byte order mark": (
        byte_order_mark("tokenizer_config.json"),
        "tokenizer_config.json: begins with a byte order mark; save it",
    ),
    "a pointer of LFS": (
        pointer("source.spm"),
        "source.spm: is a pointer of Git LFS; run git lfs pull",
    ),
    "weights that are a pointer of LFS": (
        pointer("model.safetensors"),
        "model.safetensors: is a pointer of Git LFS",
    ),
    "no vocabulary": (lambda folder: (folder / "vocab.json").unlink(), "vocab.json: No such file"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "model.safetensors: No such file",
    ),
    "no settings": (lambda folder: (folder / "config.json").unlink(), "config.json: No such file"),
    "a layer that no setting mentions": (
        change_weights(**{"model.decoder.layers.1.fc1.weight": np.zeros((16, 8), np.float32)}),
        "model.safetensors: has tensors that the model of config.json lacks "
        ".model.decoder.layers.1.fc1.weight",
    ),
    "a missing part of the weights": (
        lambda folder: (split_weights(folder) / "model-00002-of-00002.safetensors").unlink(),
        "model-00002-of-00002.safetensors: No such file",
    ),
    "parts in another folder": (
        lambda folder: (
            (folder / "model.safetensors").unlink(),
            folders.write_json(
                folder / "model.safetensors.index.json", {"weight_map": {"a": "../b"}}
            ),
        ),
        "model.safetensors.index.json: must have names of files in its folder",
    ),
    "a ban of the end": (
        change_json("generation_config.json", suppress_tokens=[0]),
        "generation_config.json: bans </s>",
    ),
    "a ban of no token": (
        change_json("generation_config.json", bad_words_ids=[[999]]),
        "generation_config.json: dama",
    ),
    "a table of another height": (
        change_weights(**{"model.shared.weight": np.zeros((5, folders.D_MODEL), np.float32)}),
        "model.shared.weight has shape .5, 8., but there are ",
    ),
    "a table of another rank": (
        change_weights(**{"model.shared.weight": np.zeros(5, np.float32)}),
        "model.shared.weight has shape .5,., but there are ",
    ),
    "a bias of another width": (
        change_weights(final_logits_bias=np.zeros((1, 3), np.float32)),
        "final_logits_bias has",
    ),
    "NaN": (
        change_weights(final_logits_bias=np.full((1, 3), np.nan, np.float32)),
        "final_logits_bias has values",
    ),
    "positions that no formula gives": (
        change_weights(
            **{"model.encoder.embed_positions.weight": np.ones((9, folders.D_MODEL), np.float32)}
        ),
        "model.encoder.embed_positions.weight: only positions",
    ),
    "1e9 positions": (
        change_json("config.json", max_position_embeddings=10**9),
        "config.json: config.decoding.max_source_length=1000000000: must be from 2 to 65536",
    ),
    "1e6 beams": (
        change_json("generation_config.json", num_beams=10**6),
        "generation_config.json: config.decoding.beam_size=1000000: must be from 1 to 1000",
    ),
    "a forced first token": (
        change_json("generation_config.json", forced_bos_token_id=5),
        "forced_bos_token_id=5: a token that begins each translation",
    ),
    "only a pickle": (only_a_pickle, "pytorch_model.bin: .*pickle.*safetensors"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_line(name, folder):
    check_damage(folder, *DAMAGES[name])


def test_special_tokens_keep_their_rows(folder):
    weights = whole_arrays(folder)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    table = hugging_face.read(folder).parameters["decoder.embedding.table"]
    for token, piece in ((PAD, "<pad>"), (UNK, "<unk>"), (EOS, "</s>")):
        np.testing.assert_array_equal(
            table[token], weights["model.shared.weight"][vocabulary[piece]]
        )
