"""Configurations and flags: any text gives either a configuration that can be saved and loaded, or
a one-line error.
"""

import json
import types
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from configs import base
from tests.hostile.inputs import contents, damaged, texts, values
from tests.hostile.outcomes import Refusal, outcome, run
from transformer import evaluate, train, translate
from transformer.config import loading
from transformer.config.keys import flatten, validated_config
from transformer.train import read_config
from transformer.workdir import open_existing

BASE = flatten(base.get_config())
KEYS = sorted(BASE)
CONFIG_FILE = Path("configs/multi30k.py").read_bytes()

# Text that resembles a value of some key.
near_values = st.sampled_from(
    (
        "",
        "None",
        "true",
        "0",
        "1",
        "-1",
        "2147483648",
        "1e999",
        "nan",
        "9" * 5000,
        "0x10",
        "1_0",
        " 1 ",
        "\xb2",
        "()",
        "[" * 3000,
    )
) | st.sampled_from(
    (
        "{[]: 1}",
        "(('a', 'b', 'c'),)",
        "'\\ud800'",
        "1\n",
        "a\0b",
        "\udcff",
        "x" * 300,
        "~nobody-of-that-name/x",
    )
)
texts_of_values = near_values | texts | st.floats().map(str) | st.integers().map(str)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("configs")


def check_complete(config, folder: Path) -> None:
    """Checks that the configuration has the keys of base.py and that saving and loading change
    nothing.
    """
    assert set(flatten(config)) == set(BASE)
    loading.save(config, folder)
    assert loading.load(folder) == config


@given(st.sampled_from(KEYS) | texts, texts_of_values)
@example("data.downloads", "{[]: 1}")
@example("data.downloads", "(" * 3000)
@example("data.path", "a\0b")
@example("data.path", "\udcff")
@example("optimizer.learning_rate", "1e999")
@example("training.steps", "1" * 30)
def test_overrides(folder, key, text):
    config = outcome(loading.override, validated_config(BASE), [(key, text)])
    if isinstance(config, Refusal):
        assert key in config.message or (len(key) > 40)
    else:
        check_complete(config, folder)


@given(st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=3))
@example({"model.dropout": 10**400})
@example({"data.downloads": [["a", "b", "\0"]]})
@example({"data.downloads": [{}]})
@example({"data.downloads": [["a", {"b": "c"}]]})
def test_values_of_any_type(folder, changes):
    config = outcome(validated_config, BASE | changes)
    if not isinstance(config, Refusal):
        check_complete(config, folder)


SAVED = json.dumps({"schema_version": 2} | validated_config(BASE).to_dict(), indent=2).encode()


@st.composite
def edited_json(draw) -> bytes:
    record = json.loads(SAVED)
    group = draw(st.sampled_from((record, record["model"], record["data"])))
    key = draw(
        st.sampled_from(sorted(group))
        | st.sampled_from(("model.d_model", "items", "_fields", "get"))
        | texts
    )
    if draw(st.booleans()):
        group[key] = draw(values)
    else:
        group.pop(key, None)
    return json.dumps(record).encode()


@given(damaged(SAVED) | edited_json() | contents)
@example(SAVED.replace(b'"dropout": 0.1', b'"dropout": 1' + b"0" * 400))
@example(b'{"schema_version": 2, "model": ' + b"[" * 100_000)
@example(b'{"schema_version": 2, "x": ' + b'{"x": ' * 900 + b"1" + b"}" * 901)
@example(b'{"schema_version": 2, "model.d_model": 3}')
@example(b'{"schema_version": 2, "items": 3}')
@example(b'{"schema_version": true}')
def test_saved_configurations(folder, content):
    path = folder / "config.json"
    path.write_bytes(content)
    config = outcome(loading.load, path)
    if isinstance(config, Refusal):
        assert str(path) in config.message
    else:
        check_complete(config, folder)


def test_a_folder_named_config_json_is_rejected(tmp_path):
    (tmp_path / "config.json").mkdir()
    assert "config.json" in outcome(loading.load, tmp_path).message


@given(damaged(CONFIG_FILE) | contents, texts)
def test_config_files(tmp_path_factory, content, argument):
    path = tmp_path_factory.mktemp("config") / "experiment.py"
    path.write_bytes(content)
    config = outcome(loading.load_file, f"{path}:{argument}", [])
    if isinstance(config, Refusal):
        assert str(path) in config.message or "config." in config.message
    else:
        check_complete(config, path.parent)


# Arguments that resemble flags of a command line, with and without values.
flags = (
    st.tuples(
        st.sampled_from(
            (
                "--config",
                "--workdir",
                "--extend",
                "--checkpoint",
                "--average",
                "--n_best",
                "--format",
                "--source",
                "--split",
            )
        )
        | st.sampled_from(KEYS).map("--config.{}".format)
        | st.sampled_from(KEYS).map("--{}".format)
        | st.sampled_from(("--", "-", "--=", "--config.", "-x", "--decoding", "")),
        st.just("") | texts_of_values.map("={}".format),
    ).map("".join)
    | texts_of_values
)


@given(st.sampled_from((train, evaluate, translate)), st.lists(flags, max_size=5))
@example(translate, ["--workdir=" + "x" * 5000])
@example(translate, ["--workdir=/dev/null/x"])
@example(train, ["--config=" + "x" * 5000 + ".py", "--workdir=x"])
@example(train, ["--config=/dev/null/x.py", "--workdir=x"])
@example(evaluate, ["--average"])
def test_command_lines(module, argv):
    """Runs the start of each command: parses flags and opens the configuration or workdir that they
    name.
    """

    def main(arguments) -> None:
        if module is train:
            read_config(arguments)
        else:
            for name in arguments.workdir.split(","):
                open_existing(Path(name))

    if not {"-h", "--help"} & set(argv):
        run(types.SimpleNamespace(make_parser=module.make_parser, main=main), *argv)
