"""Exports that need only JAX: equal translations without this project's code, on every platform."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.export
import jaxtyping
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import transformer
from scripts import export
from scripts.interop import certificate, stablehlo, workdirs
from scripts.interop.formats import FORMATS
from tests.checkpoints.workdirs import make_workdir, run
from tests.scripts.interop.portable import make_tokenizer, random_model
from transformer.data.tokenizers.piece_vocabulary import PieceVocabulary
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.support.errors import UserError
from transformer.support.miscompilation import miscompiled_operation
from transformer.support.special_tokens import SPECIAL_PIECES

BYTES = {
    "data.source": "text",
    "tokenizer.kind": "bpe",
    "tokenizer.byte_fallback": "true",
    "tokenizer.vocab_size": "272",
    "data.source_tag": ">>{target_language}<<",
    "decoding.max_source_length": "32",
}
VARIANT = {
    "model.norm_position": "pre",
    "model.positions": "rotary",
    "model.activation": "swiglu",
    "model.share_embeddings": "none",
    "model.decoder_self_attention": "ssru",
    "model.output_bias": "true",
    "tokenizer.shared": "false",
    "decoding.beam_size": "1",
}
LINES = {
    "bytes": [
        "A man rides a horse.",
        "",
        "x",
        "Zwei Häuser – 3 €",
        "many words " * 9,
        *map(str, range(15)),
    ],
    "ids": ["1 2 3", "7 7 7 1", "", "2", " ".join("12345678"), "5 99"],
    "pieces": [
        ">>fra<< the red lamp",
        "the red lamp",
        "a lamp >>fra<<",
        "two men run",
        "a dog sells Z",
        "a small ball",
    ],
}


# Runs a program in an environment without some modules.
RUN_WITHOUT = """
import json, runpy, sys

class Absent:
    blocked = set(json.loads(sys.argv[1]))

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
runpy.run_path(sys.argv[2], run_name="__main__")
"""


def promised_packages() -> list[str]:
    """Returns the packages that the exported program and the docs name, which must be the same."""
    program = " ".join(stablehlo.TRANSLATE.read_text().split())
    docs = Path("docs/interop.md").read_text().split()
    (named,), (documented,) = (
        re.findall(
            r"needs (?:only )?the packages ([\w, ]+?)[,:] ?(?:and the files|```)",
            text,
            re.IGNORECASE,
        )
        for text in (program, " ".join(docs))
    )
    assert named == documented
    return re.split(", | and ", named)


def modules_of_others(promised: list[str]) -> list[str]:
    """Returns the modules of this environment that an installation of these packages alone would
    lack.
    """
    installed, waiting = set(), list(promised)
    while waiting:
        name = re.sub("[-_.]+", "-", waiting.pop()).lower()
        if name not in installed:
            installed.add(name)
            requirements = importlib.metadata.requires(name) or []
            waiting += [
                re.match(r"[\w.-]+", line)[0] for line in requirements if "extra ==" not in line
            ]
    owners = importlib.metadata.packages_distributions()
    return [
        module
        for module, names in owners.items()
        if not {re.sub("[-_.]+", "-", name).lower() for name in names} & installed
    ]


def make_piece_tokenizer() -> Tokenizer:
    """Returns a tokenizer like OPUS-MT's: one list of pieces with a language token, and a model for
    each side.
    """
    sides = make_tokenizer(29, 26).sides
    pieces = dict.fromkeys([*SPECIAL_PIECES, ">>fra<<", *sides[1].pieces, *sides[0].pieces])
    source = PieceVocabulary(list(pieces), [side.serialized for side in sides])
    return Tokenizer(source, source.target_view)


@pytest.fixture(scope="module", autouse=True)
def symbolic_dimensions():
    """Allows symbols as dimensions, which are no `int`."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module", params=LINES)
def exported(request, tmp_path_factory):
    """Returns a name of LINES, a workdir with random parameters, and its export."""
    path = tmp_path_factory.mktemp("stablehlo")
    workdir = path / "workdir"
    if request.param == "pieces":
        workdir.mkdir()
        model = random_model(
            make_piece_tokenizer(), tokenizer__kind="pieces", model__share_embeddings="target"
        )
        workdirs.write(model, workdir)
    else:
        make_workdir(workdir, steps=(10,), **{"bytes": BYTES, "ids": VARIANT}[request.param])
    (path / "export").mkdir()
    stablehlo.write_stablehlo(workdirs.from_workdir(workdir, "last", 1), path / "export", None)
    return request.param, workdir, path / "export"


@pytest.mark.first_case
def test_the_program_translates_without_our_code(exported):
    name, workdir, folder = exported
    model = transformer.load(workdir)
    tag = model.decoder.tokenizer.source_tag  # a token of the SentencePiece model
    blocked = modules_of_others(promised_packages())
    assert {"flax", "optax", "absl"} <= set(blocked)
    # -I: neither the current folder nor PYTHONPATH leads to the project.
    command = [
        sys.executable,
        "-I",
        "-c",
        RUN_WITHOUT,
        json.dumps(blocked),
        str(folder / "translate.py"),
    ]
    text = "".join(f"{line and tag and tag + ' '}{line}\n" for line in LINES[name])
    given = text.encode() + b"\xff\n"  # not UTF-8
    done = subprocess.run(command, input=given, capture_output=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    expected = [best.text for (best,) in model.translate(LINES[name])]
    lines = done.stdout.decode().split("\n")
    assert lines[:-2] == expected and lines[-1] == ""
    assert len(set(expected)) > 2


@pytest.mark.slow
def test_its_certificate_compares_the_search_of_the_workdir(exported, tmp_path):
    name, workdir, _ = exported
    (tmp_path / "sentences").write_text("".join(f"{line}\n" for line in LINES[name]))
    flags = (
        f"--workdir={workdir}",
        "--checkpoint=last",
        "--format=stablehlo",
        f"--sentences={tmp_path / 'sentences'}",
    )
    for output, more in (("program", []), ("none", ["--runtime=none"])):
        assert run(export, *flags, f"--output={tmp_path / output}", *more) == 0
    certified, uncertified = (
        json.loads((tmp_path / n / "certificate.json").read_text()) for n in ("program", "none")
    )
    assert (certified["verdict"], uncertified["verdict"]) == ("certified", "uncertified")
    assert (certified["identical_beam"], certified["identical_greedy"]) == (1.0, None)
    # Another program than the workdir's search:
    model, program = workdirs.from_workdir(workdir, "last", 1), tmp_path / "program"
    weights = load_file(program / "model.safetensors")
    table = "decoder.embedding.table"
    save_file(weights | {table: np.roll(weights[table], 1, axis=0)}, program / "model.safetensors")
    lines = certificate.Sentences("here", LINES[name])
    result = certificate.certify(
        model, program, FORMATS["stablehlo"], Path(sys.executable), lines, quantization=None
    )
    assert result["verdict"] == "below the bars"


@pytest.mark.slow
def test_the_lines_in_the_docs_translate(exported):
    blocks = re.findall(
        r"^```py\n(.*?)^```$", Path("docs/interop.md").read_text(), re.MULTILINE | re.DOTALL
    )
    names = {}
    exec(next(block for block in blocks if "def translate" in block), names)
    tokens = names["translate"](exported[2], [5, 6, 3])
    end = tokens.tolist().index(3)
    assert tokens[:end].all() and not tokens[end + 1 :].any()


@pytest.mark.first_case
def test_the_programs_are_for_all_platforms(exported):
    for name in ("encoder", "search"):
        program = jax.export.deserialize((exported[2] / f"{name}.jax").read_bytes())
        assert program.platforms == stablehlo.PLATFORMS
        text = str(program.mlir_module())
        assert "LayoutConstraint" not in text and "bf16" not in text
        dots = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
        assert dots and all("precision = [HIGHEST, HIGHEST]" in line for line in dots)


@pytest.mark.first_case
def test_the_encoder_gives_the_states_of_any_number_and_length_of_sentences(exported):
    name, workdir, folder = exported
    model = transformer.load(workdir)
    encoder = jax.export.deserialize((folder / "encoder.jax").read_bytes())
    weights, tokenizer = (
        load_file(folder / "model.safetensors"),
        model.decoder.tokenizer.encoders[0],
    )
    for texts in (LINES[name][:2], LINES[name][3:4]):
        rows = [[*tokens, 3] for tokens in tokenizer.encode(texts)]
        source = np.zeros((len(rows), max(map(len, rows)) + 2), np.int32)
        for row, tokens in zip(source, rows, strict=True):
            row[: len(tokens)] = tokens
        states = encoder.call(weights, source)
        for row, tokens, encoding in zip(states, rows, model.encode(texts), strict=True):
            np.testing.assert_allclose(row[: len(tokens)], encoding.states, atol=1e-5)


@pytest.mark.first_case
def test_the_search_is_compiled_rightly_on_cpus(exported):
    weights = load_file(exported[2] / "model.safetensors")
    search = jax.export.deserialize((exported[2] / "search.jax").read_bytes())
    compiled = jax.jit(search.call).lower(weights, np.zeros((4, 16), np.int32)).compile()
    assert miscompiled_operation(compiled.as_text()) is None


def test_the_weights_are_plain_and_described(exported):
    _, workdir, folder = exported
    model = workdirs.from_workdir(workdir, "last", 1)
    weights = load_file(folder / "model.safetensors")
    assert weights.keys() == model.parameters.keys()
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(weights[name], array)
    settings = json.loads((folder / "config.json").read_text())
    assert settings["model"]["d_model"] == 8 and len(settings["languages"]) == 2
    with safe_open(folder / "model.safetensors", "np") as file:
        assert json.loads(file.metadata()["config"]) == settings


def with_settings(tmp_path, **changes):
    model = workdirs.from_workdir(make_workdir(tmp_path / "workdir", steps=(10,)), "last", 1)
    return model._replace(config=model.config | changes)


def test_weights_that_are_views_of_others_are_written_in_their_order(tmp_path):
    model = with_settings(tmp_path)
    views = {name: np.asfortranarray(array) for name, array in model.parameters.items()}
    stablehlo.write_safetensors(model._replace(parameters=views), tmp_path, None)
    for name, array in load_file(tmp_path / "model.safetensors").items():
        np.testing.assert_array_equal(array, model.parameters[name])


@pytest.mark.slow
def test_the_dtype_is_that_of_the_quantization(tmp_path):
    model = with_settings(tmp_path, **{"model.dtype": "bfloat16"})
    for quantization, has_bfloat16 in ((None, False), ("bfloat16", True)):
        folder = tmp_path / str(quantization)
        folder.mkdir()
        stablehlo.write_stablehlo(model, folder, quantization)
        program = jax.export.deserialize((folder / "search.jax").read_bytes())
        dots = [
            line
            for line in str(program.mlir_module()).splitlines()
            if "stablehlo.dot_general" in line
        ]
        assert any("bf16" in line for line in dots) == has_bfloat16
        tokens, scores = program.call(
            load_file(folder / "model.safetensors"), np.array([[5, 6, 3]], np.int32)
        )
        assert tokens.shape == (1, 6) and np.isfinite(scores).all()


@pytest.mark.slow
def test_the_coverage_penalty_is_exported_and_constraints_are_left_out_with_a_warning(
    tmp_path, caplog
):
    changes = {
        "decoding.coverage_penalty": 5.0,
        "decoding.min_length": 2,
        "decoding.no_repeat_ngram": 3,
    }
    model = with_settings(tmp_path, **{"decoding.beam_size": 4})
    programs = []
    for name, settings in (("plain", {}), ("controlled", changes)):
        (tmp_path / name).mkdir()
        model.config.update(settings)
        stablehlo.write_stablehlo(model, tmp_path / name, None)
        programs.append(jax.export.deserialize((tmp_path / name / "search.jax").read_bytes()))
    warned = [record.message for record in caplog.records if record.message.startswith("decoding.")]
    for key, value in (("min_length", 2), ("no_repeat_ngram", 3)):
        assert f"decoding.{key}={value}: the exported search has no such part." in warned
    assert len(warned) == 2
    weights = load_file(tmp_path / "plain" / "model.safetensors")
    source = np.array([[5, 6, 7, 8, 3], [7, 3, 0, 0, 0]], np.int32)
    (_, plain), (_, ranked) = (program.call(weights, source) for program in programs)
    assert (ranked < plain).all()  # the penalty is negative


@pytest.mark.parametrize(
    ("key", "value"), [("decoding.strategy", "sample"), ("training.objective", "causal_lm")]
)
def test_what_the_search_cannot_express_is_refused_by_name(tmp_path, key, value):
    with pytest.raises(UserError, match=f"cannot express {key}={value}, only"):
        stablehlo.write_stablehlo(with_settings(tmp_path, **{key: value}), tmp_path, None)
    assert not (tmp_path / "model.safetensors").exists()
