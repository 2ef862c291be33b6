"""Models of CTranslate2: tiny files by an independent writer, damage to them, and round trips by
its own converter.
"""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from scripts import distill, export
from scripts.interop import ctranslate2, ctranslate2_reader, formats, workdirs
from scripts.interop.portable import NEVER
from tests.checkpoints.workdirs import make_workdir, run
from tests.scripts.interop.portable import TEXTS, answers, make_tokenizer, random_model
from transformer.config import cli
from transformer.decoding.shortlist import Shortlist
from transformer.support import files
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS, PAD, UNK

D, HEADS, INNER = 8, 2, 12
SOURCES, TARGETS = ["<blank>", "<s>", "</s>", "a", "b"], ["<blank>", "<s>", "</s>", "x", "y", "z"]
TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")


def name_bytes(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def model_bin(
    variables: dict[str, np.ndarray],
    version=6,
    specification="TransformerSpec",
    revision=7,
    aliases=(),
):
    """Returns the content of a model.bin.

    Types are those of TYPES, or before version 4 the size of an item.
    """
    content = (
        struct.pack("<I", version)
        + name_bytes(specification)
        + struct.pack("<II", revision, len(variables))
    )
    for name, value in variables.items():
        size, kind = value.nbytes, TYPES.index(value.dtype.name)
        if version < 4:
            size, kind = value.size, value.itemsize
        content += name_bytes(name) + struct.pack(
            f"<B{value.ndim}IBI", value.ndim, *value.shape, kind, size
        )
        content += value.tobytes()
    if version >= 3:
        content += struct.pack("<I", len(aliases)) + b"".join(
            name_bytes(name) for pair in aliases for name in pair
        )
    return content


def random_variables(seed: int = 0) -> dict[str, np.ndarray]:
    """Returns the variables of a pre-norm model with one layer in each stack, as OpenNMT-py's have
    them.
    """
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "encoder/embeddings/weight": (len(SOURCES) + 1, D),
        "decoder/embeddings/weight": (len(TARGETS) + 1, D),
        "decoder/projection/weight": (len(TARGETS) + 1, D),
        "decoder/projection/bias": (len(TARGETS) + 1,),
    }
    linears = {"self_attention/linear_0": (3 * D, D), "self_attention/linear_1": (D, D)}
    linears |= {"ffn/linear_0": (INNER, D), "ffn/linear_1": (D, INNER)}
    crossed = {
        "attention/linear_0": (D, D),
        "attention/linear_1": (2 * D, D),
        "attention/linear_2": (D, D),
    }
    for stack, parts in (("encoder", linears), ("decoder", linears | crossed)):
        for part, shape in parts.items():
            shapes |= {
                f"{stack}/layer_0/{part}/weight": shape,
                f"{stack}/layer_0/{part}/bias": shape[:1],
            }
        for scope in {f"layer_0/{part.split('/')[0]}/" for part in parts} | {""}:
            shapes |= {f"{stack}/{scope}layer_norm/{kind}": (D,) for kind in ("gamma", "beta")}
    variables = {
        name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()
    }
    return variables | {"num_heads": np.int8(HEADS)}


def write_folder(folder: Path, content: bytes, config: dict | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.bin").write_bytes(content)
    (folder / "source_vocabulary.txt").write_text("".join(f"{token}\n" for token in SOURCES))
    (folder / "target_vocabulary.json").write_text(json.dumps(TARGETS))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_old_model_has_our_layout(tmp_path):
    variables = random_variables()
    folder = write_folder(
        tmp_path, model_bin(variables, version=2, specification="TransformerBase", revision=3)
    )
    assert formats.recognise(folder) == "ctranslate2"
    model = formats.FORMATS["ctranslate2"].read(folder)
    assert model.tokenizer.source.pieces == ["<pad>", "<unk>", "<s>", "</s>", "a", "b"]
    assert model.tokenizer.target.encode(["y x"]) == [[5, 4]]
    expected = {
        "model.num_heads": HEADS,
        "model.d_ff": INNER,
        "model.norm_position": "pre",
        "model.source_eos": False,
    }
    assert expected.items() <= model.config.items()
    # Rows of <blank>, of <unk>, which CTranslate2 appends, of <s> and </s>, and of ordinary tokens.
    rows = [0, 6, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(
        model.parameters["decoder.embedding.table"], variables["decoder/embeddings/weight"][rows]
    )
    np.testing.assert_array_equal(
        model.parameters["output_bias"], variables["decoder/projection/bias"][rows]
    )
    fused = variables["decoder/layer_0/attention/linear_1/weight"]
    np.testing.assert_array_equal(
        model.parameters["decoder.layers.0.cross_attention.value.kernel"], fused[D:].T
    )
    # Without a table, the encodings begin with that of position 1.
    assert model.parameters["encoder.positions.table"][0, 0] == pytest.approx(np.sin(1))


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [("int8", 0.02), ("int16", 0.005), ("float16", 0.001), ("bfloat16", 0.01)],
)
def test_weights_of_fewer_bits(tmp_path, kind, tolerance):
    import ml_dtypes

    variables, quantized = random_variables(), {}
    for name, value in variables.items():
        if not kind.startswith("int"):
            quantized[name] = (
                value.astype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
                if value.ndim
                else value
            )
        elif value.ndim == 2:
            limits = np.abs(value).max(axis=1) if kind == "int8" else np.abs(value).max()
            scale = np.float32({"int8": 127, "int16": 1024}[kind]) / limits
            quantized[name] = np.rint(value * scale.reshape(-1, 1)).astype(kind)
            quantized[f"{name}_scale"] = scale
        else:
            quantized[name] = value
    exact = ctranslate2_reader.read(write_folder(tmp_path / "exact", model_bin(variables)))
    model = ctranslate2_reader.read(write_folder(tmp_path / "quantized", model_bin(quantized)))
    assert model.config == exact.config
    for name, value in exact.parameters.items():
        assert np.abs(model.parameters[name] - value).max() < tolerance * max(
            1, np.abs(value).max()
        ), name


@pytest.mark.parametrize("has_source_eos", [True, False])
def test_absent_and_doubled_tokens(tmp_path, has_source_eos):
    """A shared table, padded, whose decoder starts with EOS: neither BOS nor padding has a
    probability.

    Converters of models that start so leave it to the caller to add EOS to sources, or have it
    added.
    """
    variables = random_variables()
    table = variables["encoder/embeddings/weight"] = variables["decoder/embeddings/weight"]
    del variables["decoder/projection/weight"], variables["decoder/projection/bias"]
    aliases = [("decoder/projection/weight", "decoder/embeddings/weight")]
    config = {
        "decoder_start_token": "</s>",
        "add_source_eos": has_source_eos,
        "layer_norm_epsilon": 1e-3,
    }
    folder = write_folder(tmp_path, model_bin(variables, aliases=aliases), config)
    (folder / "shared_vocabulary.json").write_text(json.dumps(["</s>", "<unk>", "a", "b", "c"]))
    for name in ("source_vocabulary.txt", "target_vocabulary.json"):
        (folder / name).unlink()
    model = ctranslate2_reader.read(folder)
    assert model.tokenizer.is_shared
    assert model.tokenizer.source.pieces[4:] == ["a", "b", "c", "<padding 5>", "<padding 6>"]
    assert model.config["model.share_embeddings"] == "all"
    assert model.config["model.source_eos"] and model.config["model.layer_norm_epsilon"] == 1e-3
    rows = model.parameters["decoder.embedding.table"]
    np.testing.assert_array_equal(rows[[BOS, EOS, UNK]], table[[0, 0, 1]])
    assert not rows[PAD].any()
    assert model.parameters["output_bias"].tolist() == [NEVER, 0, NEVER, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_shortlist_is_a_vocabulary_map(is_shared):
    tokenizer = make_tokenizer(28) if is_shared else make_tokenizer(28, 29)
    source, target = (side.pieces for side in tokenizer.sides)
    translations = np.full((28, 2), -1, np.int32)
    translations[5], translations[7, 0] = (9, 8), 6
    shortlist = Shortlist(
        translations, np.array([4, EOS], np.int32), tokenizer.target.size, is_shared
    )
    share = "all" if is_shared else "target"
    model = random_model(tokenizer, model__share_embeddings=share)._replace(shortlist=shortlist)
    lines = dict(line.split("\t") for line in ctranslate2.vocabulary_map(model).splitlines())
    assert lines[""].split(" ") == [target[4], target[EOS]]
    copied = [source[5]] if is_shared else []
    assert lines[source[5]].split(" ") == [target[9], target[8], *copied]
    assert (len(lines) == 1 + 24) if is_shared else (lines.keys() == {"", source[5], source[7]})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.attention", "additive"),
        ("model.attention", "dot_product_unscaled"),
        ("model.decoder_self_attention", "ssru"),
        ("training.objective", "causal_lm"),
        ("model.d_v", 8),
        ("data.context", 2),
    ],
)
def test_settings_that_ctranslate2_cannot_express_are_named(tmp_path, key, value):
    model = random_model(make_tokenizer(28))
    model.config[key] = value
    with pytest.raises(UserError, match=f"cannot express {key}={value}"):
        ctranslate2.write(model, tmp_path, None)


def test_the_converter_runs_in_the_python_of_the_flag(tmp_path, capsys):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ngrep -q vocabularies && echo told to convert >&2; exit 1\n")
    python.chmod(0o755)
    workdir, output = make_workdir(tmp_path / "workdir", steps=(10,)), tmp_path / "exported"
    flags = [
        f"--workdir={workdir}",
        "--format=ctranslate2",
        f"--output={output}",
        "--checkpoint=last",
    ]
    assert cli.execute(export.make_parser(), export.main, [*flags, f"--runtime={python}"]) == 2
    assert "told to convert" in capsys.readouterr().err
    assert not output.exists()


def test_argos_package(tmp_path):
    tokenizer = make_tokenizer(28)
    folder = write_folder(tmp_path / "translate-de_en" / "model", model_bin(random_variables()))
    (folder.parent / "metadata.json").write_text(json.dumps({"from_code": "de", "to_code": "en"}))
    (folder.parent / "sentencepiece.model").write_bytes(tokenizer.source.serialized)
    assert formats.recognise(folder.parent) == "ctranslate2"
    model = ctranslate2_reader.read(folder.parent)
    assert model.tokenizer.source.models == (tokenizer.source.serialized,) * 2
    assert (model.config["data.source_language"], model.config["data.target_language"]) == (
        "de",
        "en",
    )
    (folder.parent / "metadata.json").write_text(json.dumps({"from_code": None, "to_code": 5}))
    assert "data.source_language" not in ctranslate2_reader.read(folder.parent).config
    prefixed = json.dumps({"from_code": "de", "to_code": "en", "target_prefix": ">>en<<"})
    (folder.parent / "metadata.json").write_text(prefixed)
    with pytest.raises(UserError, match="has target_prefix='>>en<<', with which"):
        ctranslate2_reader.read(folder.parent)
    (folder.parent / "sentencepiece.model").rename(folder.parent / "bpe.model")
    with pytest.raises(UserError, match="has a bpe.model of subword-nmt"):
        ctranslate2_reader.read(folder.parent)


def with_variable(name: str, value) -> bytes:
    return model_bin(random_variables() | {name: np.array(value)})


DAMAGED = {
    "truncated": (model_bin(random_variables())[:-100], "damaged"),
    "empty": (b"", "damaged"),
    "binary version 1": (struct.pack("<I", 1), "binary version 1, must be 2 to 6"),
    "a size that overflows": (
        struct.pack("<I", 6)
        + name_bytes("TransformerSpec")
        + struct.pack("<II", 7, 1)
        + name_bytes("x")
        + struct.pack("<B4IBI", 4, *[2**32 - 1] * 4, 0, 2**32 - 1),
        "damaged",
    ),
    "many variables": (
        struct.pack("<I", 6) + name_bytes("TransformerSpec") + struct.pack("<II", 7, 2**32 - 1),
        "damaged",
    ),
    "a type of the future": (
        model_bin({"x": np.zeros(2, np.float32)}).replace(b"\0\x08\0\0\0", b"\x09\x08\0\0\0"),
        "damaged",
    ),
    "NaN": (with_variable("decoder/projection/bias", np.full(7, np.nan, np.float32)), "NaN"),
    "a scale of zero": (
        with_variable("decoder/projection/weight_scale", np.zeros(7, np.float32)),
        "NaN",
    ),
    "more scales than rows": (
        with_variable("decoder/projection/weight_scale", np.ones(3000, np.float32)),
        "weight_scale has 3000 scales for other rows",
    ),
    "an empty table": (
        with_variable("encoder/embeddings/weight", np.zeros((3_000_000, 0), np.float32)),
        "is empty, with the shape",
    ),
    "a language model": (
        model_bin({}, specification="TransformerDecoderSpec"),
        "encoder-decoder TransformerSpec",
    ),
    "relative positions": (
        with_variable(
            "encoder/layer_0/self_attention/relative_position_keys", np.zeros((3, 4), np.float32)
        ),
        "relative_position_keys",
    ),
    "ALiBi": (with_variable("decoder/alibi", np.int8(1)), "decoder/alibi"),
    "two activations": (with_variable("encoder/activation", np.int8(4)), "activation"),
    "source features": (
        with_variable("encoder/embeddings_1/weight", np.zeros((3, 8), np.float32)),
        "embeddings_1",
    ),
    "interleaved rotations": (
        with_variable("encoder/layer_0/self_attention/rotary_dim", np.int32(0)),
        "rotary_dim",
    ),
    "a short table": (
        with_variable("decoder/embeddings/weight", np.zeros((3, 8), np.float32)),
        "must have at most the 3",
    ),
    "no projection": (
        model_bin(
            {key: value for key, value in random_variables().items() if "projection" not in key}
        ),
        "projection",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_or_unknown_models_are_refused_in_one_line(tmp_path, case):
    content, reason = DAMAGED[case]
    with pytest.raises(UserError, match=reason) as error:
        ctranslate2_reader.read(write_folder(tmp_path, content))
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"decoder_start_token": None}, "decoder_start_token"),
        ({"add_source_bos": True}, "add_source_bos"),
        ({"quantization_type": 1}, "quantization_type"),
        ({"eos_token": ["</s>"]}, r"has the setting eos_token=\['</s>'\], must be a str"),
        ({"unk_token": None}, "has the setting unk_token=None, must be a str"),
        ({"decoder_start_token": 2}, "has the setting decoder_start_token=2, must be a str"),
        ({"decoder_start_token": "<start>"}, "damaged .no '<start>'"),
        ({"eos_token": "<end>"}, "damaged .no '<end>'"),
        ({"add_source_eos": "no"}, "has the setting add_source_eos=no, must be a bool"),
        (
            {"layer_norm_epsilon": "1e-5"},
            "has the setting layer_norm_epsilon=1e-5, must be a float",
        ),
        ({"layer_norm_epsilon": {}}, "has the setting layer_norm_epsilon={}, must be a float"),
    ],
)
def test_settings_without_an_equivalent_are_refused_in_one_line(tmp_path, config, reason):
    with pytest.raises(UserError, match=reason) as error:
        ctranslate2_reader.read(write_folder(tmp_path, model_bin(random_variables()), config))
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "tokens", [[*TARGETS[:-1], ["a"]], [*TARGETS[:-1], 1], [*TARGETS[:-1], "x"]]
)
def test_a_vocabulary_has_only_different_strings(tmp_path, tokens):
    folder = write_folder(tmp_path, model_bin(random_variables()))
    (folder / "target_vocabulary.json").write_text(json.dumps(tokens))
    with pytest.raises(UserError, match=r"target_vocabulary.json: ") as error:
        ctranslate2_reader.read(folder)
    assert "\n" not in str(error.value)


def test_random_damage_raises_only_user_errors(tmp_path):
    content, random = model_bin(random_variables()), np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(
            content[: random.integers(1, len(content))] if random.random() < 0.3 else content
        )
        for position in random.integers(0, min(len(damaged), 400), 3):
            damaged[position] = random.integers(256)
        try:
            ctranslate2_reader.read(write_folder(tmp_path, bytes(damaged)))
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "changes"),
    [
        ((28,), {"decoding__beam_size": 3}),
        (
            (28,),
            {
                "norm_position": "pre",
                "positions": "rotary",
                "activation": "swiglu",
                "share_embeddings": "target",
            },
        ),
        (
            (28, 29),
            {
                "share_embeddings": "none",
                "attention_bias": True,
                "output_bias": True,
                "num_decoder_layers": 2,
            },
        ),
        (
            (28,),
            {
                "positions": "sinusoidal_marian",
                "decoder_start": "zero",
                "source_eos": False,
                "activation": "swish",
            },
        ),
        (
            (28,),
            {
                "positions": "learned",
                "max_positions": 300,
                "activation": "geglu",
                "final_norm": True,
            },
        ),
        (
            (28,),
            {
                "positions": "sinusoidal_concatenated",
                "layer_norm_epsilon": 1e-3,
                "activation": "glu",
            },
        ),
        ((28,), {"d_k": 6, "d_v": 6, "norm_position": "pre"}),
    ],
    ids=str,
)
def test_exported_models_return_and_compute_the_same(tmp_path, interop_python, sizes, changes):
    changes = {key if "__" in key else f"model__{key}": value for key, value in changes.items()}
    model = random_model(
        make_tokenizer(*sizes), data__max_length=32, decoding__max_source_length=32, **changes
    )
    ctranslate2.write(model, tmp_path, None)
    again = ctranslate2_reader.read(tmp_path)
    assert again.parameters.keys() == model.parameters.keys()
    for name, value in model.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], value, err_msg=name)
    unspecified = {"model.dtype", "model.final_norm", "model.num_decoder_layers"}
    for key in model.config.keys() - unspecified:
        assert not key.startswith("model.") or again.settings[key] == model.settings[key]
    assert [side.pieces for side in again.tokenizer.sides] == [
        side.pieces for side in model.tokenizer.sides
    ]

    texts = ["a dog runs", "two men sit in the park", "the girl"]
    ours, theirs = answers(model, tmp_path, formats.FORMATS["ctranslate2"], interop_python, texts)
    assert ours["greedy"] == theirs["greedy"]
    np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-4)


@pytest.mark.slow
def test_the_export_of_a_plan_is_timed_and_scored(interop_python, tmp_path, capsys):
    for language in ("de", "en"):
        (tmp_path / f"valid.{language}").write_text("".join(f"{text}\n" for text in TEXTS))
    values = {"data__source": "text", "data__path": str(tmp_path), "data__valid_split": "valid"}
    model = random_model(make_tokenizer(28), seed=3, model__output_bias=True, **values)
    # else all translations would reach the length limit
    model.parameters["output_bias"][EOS] += 2.2
    with files.new_folder(tmp_path / "model") as workdir:
        workdirs.write(model, workdir)
    export = 'plan.export(model, "ctranslate2", quantization="int8", decoding={"beam_size": 1})'
    (tmp_path / "plan.py").write_text(
        "def get_plan(plan):\n"
        f'    model = plan.existing("model", "{tmp_path}/model")\n'
        f"    return [{export}]\n"
    )
    assert (
        run(distill, f"--plan={tmp_path / 'plan.py'}", f"--workdir={tmp_path / 'distilled'}") == 0
    )
    certificate = json.loads(
        (tmp_path / "distilled/model-ctranslate2-int8/certificate.json").read_text()
    )
    assert (certificate["search"]["beam_size"], certificate["sentences"]) == (1, len(TEXTS))
    assert 0 < certificate["seconds"]["search"] < certificate["seconds"]["theirs"]
    speed = len(TEXTS) / certificate["seconds"]["search"]
    (row,) = capsys.readouterr().out.splitlines()[2:]
    assert row.startswith("| model-ctranslate2-int8 | ") and row.endswith(f" | {speed:.1f} | 0.0 |")
