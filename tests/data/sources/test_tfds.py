"""A small dataset that TFDS writes as array_record and that is read back without TensorFlow."""

import shutil
import subprocess
import sys

import pytest

from configs import base
from transformer.data.sources import source as sources
from transformer.data.sources import tfds
from transformer.support.errors import UserError

WRITE = """
import sys
import tensorflow_datasets as tfds

class TinyTranslate(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.Translation(languages=("de", "en"))
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, download_manager):
        return {"train": self._generate_examples(10), "validation": self._generate_examples(3)}

    def _generate_examples(self, count):
        for number in range(count):
            yield number, {"en": f"number {number}", "de": f"Zahl {number} für \u2028 dich"}

TinyTranslate(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
assert "tensorflow" not in sys.modules
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    # In another process, since TFDS registers dataset classes globally.
    subprocess.run([sys.executable, "-c", WRITE, str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture
def data(folder):
    data = base.get_config().data
    data.name = "tiny_translate"
    data.path = str(folder)
    return data


def test_pairs_are_read_without_tensorflow(data, monkeypatch):
    source = sources.open_source(data, "train")
    assert len(source) == 10
    pairs = list(source)
    assert sorted(pairs) == [
        (f"number {n}".encode(), f"Zahl {n} für \u2028 dich".encode()) for n in range(10)
    ]
    # counted from 1, as lines are
    assert source.where(0, 1) == "tiny_translate/1.0.0, train, record 1, de"
    assert "tensorflow" not in sys.modules
    monkeypatch.setattr(tfds, "BLOCK", 4)
    assert list(source) == pairs


def test_the_sides_follow_the_configured_languages(data):
    data.source_language, data.target_language = "de", "en"
    sources_, references = sources.read_pairs(data, "valid")
    assert sorted(references) == ["number 0", "number 1", "number 2"]
    assert all(text.startswith("Zahl") for text in sources_)


def test_a_folder_may_begin_with_the_home_folder(data, folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    data.path = f"~/{folder.name}"
    assert len(sources.open_source(data, "train")) == 10


def test_splits_may_be_tfds_expressions(data):
    everything = list(sources.open_source(data, "train"))
    data.train_split = "train[20%:50%]"
    assert list(sources.open_source(data, "train")) == everything[2:5]
    data.valid_split = "train[:2]+train[8:]"
    assert sources.read_pairs(data, "valid")[0] == [
        pair[0].decode() for pair in everything[:2] + everything[8:]
    ]


def test_the_identity_includes_version_and_slice(data):
    whole = sources.open_source(data, "train").identity
    assert whole["dataset"] == "tiny_translate/1.0.0"
    data.train_split = "train[:50%]"
    assert sources.open_source(data, "train").identity != whole


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "train_split",
            "training",
            r"data\.train_split=training: Unknown split 'training'. Should be one of",
        ),
        ("train_split", "train[:5", r"data\.train_split=train\[:5: .*split format"),
        (
            "train_split",
            "train[:500]",
            r"data\.train_split=train\[:500\]: .*incompatible with 10 examples",
        ),
        ("source_language", "fr", r"data\.source_language.*has no fr; it has de, en"),
        ("name", "tiny_translat", r"data\.name=tiny_translat: .*not found"),
        ("name", "wmt14_translate/xx-en", r"data\.name=wmt14_translate/xx-en: "),
        (
            "name",
            "wmt14_translate/de-en",
            "not prepared in .*; run: python -m scripts.get_data --tfds=wmt14_translate/de-en "
            "--output=",
        ),
    ],
)
def test_an_invalid_value_is_an_error_of_one_line(data, key, value, message):
    data[key] = value
    with pytest.raises(UserError, match=message) as raised:
        sources.open_source(data, "train")
    assert "\n" not in str(raised.value)


def test_a_dataset_in_another_format_is_refused(data, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    (info,) = (tmp_path / "other").rglob("dataset_info.json")
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    data.path = str(tmp_path / "other")
    with pytest.raises(UserError, match=r"prepared in .* as tfrecord; remove it and run"):
        sources.open_source(data, "train")


def test_importing_sources_does_not_import_tfds():
    code = (
        "import sys; import transformer.data.sources.source; "
        "assert 'tensorflow_datasets' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
