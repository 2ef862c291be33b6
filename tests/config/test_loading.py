"""Loading of configurations: files, arguments, overrides, saved runs, and their errors."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import base
from transformer.config import loading
from transformer.config.keys import flatten, validated_config
from transformer.support.errors import UserError

BASE = flatten(base.get_config())


def write_config(folder: Path, body: str) -> str:
    path = folder / "experiment.py"
    path.write_text(body, encoding="utf-8")
    return str(path)


@given(
    rate=st.floats(min_value=0, max_value=1e30, exclude_min=True),
    width=st.none() | st.integers(1, 10**6),
    path=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\0"), max_size=9),
    downloads=st.lists(st.tuples(*[st.text("ab/.", max_size=3)] * 3), max_size=3).map(tuple),
)
def test_saving_and_loading_changes_nothing(tmp_path_factory, rate, width, path, downloads):
    changes = {
        "optimizer.learning_rate": rate,
        "model.d_v": width,
        "data.path": path,
        "data.downloads": downloads,
    }
    config = validated_config(BASE | changes)
    folder = tmp_path_factory.mktemp("run")
    loading.save(config, folder)
    loaded = loading.load(folder)
    assert flatten(loaded) == flatten(config)
    assert loaded == config
    assert list(map(type, flatten(loaded).values())) == list(map(type, flatten(config).values()))


def test_a_saved_configuration_can_be_edited_by_hand(tmp_path):
    loading.save(validated_config(BASE), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"dropout": 0.1', '"dropout": 0'))
    assert isinstance(loading.load(tmp_path).model.dropout, float)
    path.write_text(path.read_text().replace('"dropout": 0', '"dropout": "none"'))
    with pytest.raises(
        UserError, match=r"config\.json: config\.model\.dropout=none: must be a number"
    ):
        loading.load(tmp_path)


def test_keys_that_older_runs_had_are_ignored(tmp_path):
    config = base.get_config()
    loading.save(config, tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    record["model"] |= {"source_vectors": "vectors.txt", "target_vectors": ""}
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert loading.load(tmp_path).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "damaged ("),
        ("{", "damaged ("),
        ("[]", "damaged ("),
        ("{}", "damaged ("),
        ('{"schema_version": 0}', "schema_version=0, must be 2"),
        ('{"schema_version": 1}', "schema_version=1, must be 2; use the commit that made the run"),
        (
            '{"schema_version": 2, "seeds": 3}',
            "config.seeds=3: there is no key seeds; did you mean seed?",
        ),
        ("\xff", "damaged ("),
    ],
)
def test_invalid_saved_configurations_are_rejected(tmp_path, text, says):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError) as caught:
        loading.load(tmp_path)
    assert str(tmp_path) in str(caught.value) and says in str(caught.value)


def test_keys_that_a_saved_configuration_lacks_have_their_defaults(tmp_path):
    loading.save(validated_config(BASE | {"training.max_skipped": 3}), tmp_path)
    path = tmp_path / "config.json"
    saved = json.loads(path.read_text())
    del saved["training"]["max_rollbacks"], saved["mesh"], saved["seed"]
    path.write_text(json.dumps(saved))
    assert flatten(loading.load(tmp_path)) == BASE | {"training.max_skipped": 3}


def test_difference_names_the_keys_that_changed():
    changed = validated_config(
        BASE | {"model.d_k": 32, "model.dropout": 0.3, "data.path": "corpus"}
    )
    assert loading.difference(validated_config(BASE), changed) == {
        "model.d_k": "None -> 32",
        "model.dropout": "0.1 -> 0.3",
        "data.path": "'' -> corpus",
    }
    assert loading.difference(changed, changed) == {}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("model.d_model", "1_024", 1024),
        ("training.steps", "1e4", 10_000),
        ("model.dropout", "0", 0.0),
        ("optimizer.epsilon", "1e-8", 1e-8),
        ("model.d_k", "32", 32),
        ("model.final_norm", "true", True),
        ("training.eval_bleu", "False", False),
        ("data.path", "a=b", "a=b"),
        ("data.cache_dir", "", ""),
        ("data.downloads", "[('a', 'b', 'c')]", (("a", "b", "c"),)),
        ("data.downloads", "()", ()),
    ],
)
def test_overrides_are_parsed_by_the_type_of_the_key(key, text, value):
    overrides = [("checkpoint.best_metric", "loss"), (key, text)]
    read = flatten(loading.load_file("configs/base.py", overrides))[key]
    assert read == value and type(read) is type(value)


def test_optional_keys_can_be_set_and_unset():
    config = loading.load_file("configs/base.py", [("model.d_k", "32")])
    assert config.model.d_k == 32
    assert loading.override(config, [("model.d_k", "None")]).model.d_k is None
    assert (
        loading.load_file("configs/base.py", [("model.d_k", "32"), ("model.d_k", "none")]).model.d_k
        is None
    )


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("model.d_model", "512.5", "--config.model.d_model=512.5: must be an integer"),
        ("model.d_model", "1e999", "--config.model.d_model=inf: must be an integer"),
        ("model.d_model", "None", "--config.model.d_model=None: must be an integer"),
        ("model.d_k", "x", "--config.model.d_k=x: must be an integer or None"),
        ("model.dropout", "a tenth", "--config.model.dropout=a tenth: must be a number"),
        ("training.eval_bleu", "maybe", "--config.training.eval_bleu=maybe: must be true or false"),
        ("data.downloads", "(", "--config.data.downloads=(: must be a tuple"),
        (
            "training.tags",
            "('ablation')",
            "--config.training.tags=ablation: must be a tuple like ('A',)",
        ),
        ("data.downloads", "3", "config.data.downloads=3: must be a tuple"),
        ("model.dropuot", "0", "did you mean model.dropout, "),
        ("model", "0", "--config.model=0: there is no key model"),
        ("seed.x", "0", "--config.seed.x=0: there is no key seed.x"),
        ("model.dropout", "nan", "--config.model.dropout=nan: must be a number"),
        (
            "decoding.shortlist",
            "8",
            "config.decoding.shortlist=8: must be 0 in training, whose validation does not",
        ),
        (
            "decoding.dtype",
            "int8",
            "config.decoding.dtype=int8: must be auto in training, whose validation does not",
        ),
    ],
)
def test_invalid_overrides_are_rejected(key, text, says):
    with pytest.raises(UserError) as caught:
        loading.load_file("configs/base.py", [(key, text)])
    assert says in str(caught.value)


FROM_BASE = (
    "from configs import base\n\ndef get_config({}):\n    config = "
    "base.get_config()\n    {}\n    return config\n"
)


def test_get_config_receives_the_text_after_the_colon(tmp_path):
    path = write_config(tmp_path, FROM_BASE.format("width", "config.model.d_model = int(width)"))
    assert loading.load_file(f"{path}:128", []).model.d_model == 128


def test_a_whole_number_may_be_written_as_a_float(tmp_path):
    path = write_config(
        tmp_path, FROM_BASE.format("", "config.training.steps = 1e4; config.model.d_k = 1e1")
    )
    config = loading.load_file(path, [])
    assert (config.training.steps, config.model.d_k) == (10_000, 10) and type(
        config.training.steps
    ) is int


def test_values_that_refer_to_other_keys_follow_overrides(tmp_path):
    lines = (
        'width = config.model.get_ref("d_model"); config.model.d_ff = 4 * width; '
        "config.model.d_k = width"
    )
    path = write_config(tmp_path, FROM_BASE.format("", lines))
    model = loading.load_file(path, [("model.d_model", "64")]).model
    assert (model.d_model, model.d_ff, model.d_k) == (64, 256, 64)
    model = loading.load_file(path, [("model.d_ff", "100"), ("model.d_model", "64")]).model
    assert (model.d_ff, model.d_k) == (100, 64)


def test_a_config_may_have_some_keys_only(tmp_path):
    body = (
        "import ml_collections\ndef get_config(): return "
        "ml_collections.ConfigDict({'model': {'d_model': 64}})\n"
    )
    config = loading.load_file(
        write_config(tmp_path, body), [("training.steps", "5000"), ("model.num_heads", "4")]
    )
    assert (config.model.d_model, config.model.num_heads, config.training.steps) == (64, 4, 5000)


def test_numbers_may_be_numpys(tmp_path):
    lines = (
        "import numpy as np; config.optimizer.learning_rate = np.sqrt(0.25); "
        "config.training.steps = np.int64(7)"
    )
    config = loading.load_file(write_config(tmp_path, FROM_BASE.format("", lines)), [])
    assert (config.optimizer.learning_rate, config.training.steps) == (0.5, 7) and type(
        config.training.steps
    ) is int


def test_a_saved_configuration_can_be_given_as_config(tmp_path):
    workdir = tmp_path / "10:00"
    workdir.mkdir()
    config = loading.load_file("configs/base.py", [("model.d_k", "16")])
    loading.save(config, workdir)
    assert loading.load_file(str(workdir / "config.json"), []) == config


@pytest.mark.parametrize(
    ("body", "argument", "says"),
    [
        ("", "", "does not define get_config()"),
        ("def get_config(:", "", "SyntaxError"),
        ("x = 1\ny = x.z", "", "line 2: AttributeError"),
        ("import nothing_of_that_name", "", "ModuleNotFoundError"),
        (FROM_BASE.format("", "config.model.d_modle = 3"), "", "did you mean model.d_model, "),
        (
            FROM_BASE.format("", "config.model.d_model = 1.5"),
            "",
            "config.model.d_model=1.5: must be an integer",
        ),
        (
            FROM_BASE.format("", "config.model.d_k = 'x'"),
            "",
            "config.model.d_k=x: must be an integer or None",
        ),
        (FROM_BASE.format("", "config.model = 3"), "", "config.model=3: there is no key model"),
        (
            FROM_BASE.format("", "return None"),
            "",
            "get_config() returned NoneType, must be a ConfigDict",
        ),
        (FROM_BASE.format("", ""), ":x", "get_config() takes 0 positional arguments"),
        (FROM_BASE.format("row", ""), "", "get_config() missing 1 required positional"),
        (FROM_BASE.format("row", "{'A': 1}[row]"), ":B", "line 5: KeyError"),
    ],
)
def test_invalid_config_files_are_rejected(tmp_path, body, argument, says):
    with pytest.raises(UserError) as caught:
        loading.load_file(write_config(tmp_path, body) + argument, [])
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_other_files_are_rejected(tmp_path):
    with pytest.raises(
        UserError, match=r"configs/bas\.py: no such file; did you mean configs/base\.py\?"
    ):
        loading.load_file("configs/bas.py", [])
    with pytest.raises(UserError, match=r"Makefile: must be a \.py file that defines get_config"):
        loading.load_file("Makefile", [])
    with pytest.raises(UserError, match="no such file"):
        loading.load_file(str(tmp_path), [])
    (tmp_path / "lr:0.1").mkdir()
    with pytest.raises(UserError, match="lr:0.1/config.json: no such file"):
        loading.load_file(str(tmp_path / "lr:0.1"), [])
    loading.save(loading.load_file("configs/big.py", []), tmp_path / "lr:0.1")
    assert loading.load_file(str(tmp_path / "lr:0.1"), []) == loading.load_file(
        "configs/big.py", []
    )


def test_the_configs_of_the_package_are_available_in_every_folder(tmp_path, monkeypatch):
    expected = loading.load_file("configs/quickstart.py", [])
    monkeypatch.chdir(tmp_path)
    assert loading.load_file("configs/quickstart.py", []) == expected
