"""The command `scripts.mix_pairs`: real pairs, then tagged back-translated ones, in the ratio asked
for.
"""

import json
from pathlib import Path

import pytest
from pyarrow import parquet

from scripts import mix_pairs
from scripts.corpora import translator
from scripts.corpora.shards import open_shards
from tests.checkpoints.workdirs import run
from tests.data.files import write
from transformer.support import files

REAL = {"en": ["one", "two"], "de": ["eins", "zwei"]}
MONO = [
    ("drei", "three", False),
    ("vier", None, False),
    ("fünf", "", False),
    ("sechs", "six", None),
    ("sieben", "seven", False),
    ("acht", "eight", False),
    ("neun zehn", "nine", True),
]


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """Returns flags for two real pairs and seven sentences: one failed, empty and cut each."""
    (tmp_path / "real").mkdir()
    for stem in ("train", "valid"):
        for language, texts in REAL.items():
            (tmp_path / "real" / f"{stem}.{language}").write_text(
                "".join(f"{text}\n" for text in texts)
            )
    mono = tmp_path / "mono.de"
    mono.write_text("".join(f"{text}\n" for text, *_ in MONO))
    request = {
        "files": [(str(mono), mono.stat().st_size)],
        "format": "parquet",
        "column": "text",
        "shards": 3,
    }
    request |= {"model": {"languages": ["de", "en"]}}
    corpus = open_shards(tmp_path / "translated", request)
    for shard in corpus.shards:
        lines = enumerate(MONO[shard.start : shard.start + shard.count], start=shard.start + 1)
        rows = [
            ("mono.de", line, 1, text, found, 0.0, None, cut) for line, (text, found, cut) in lines
        ]
        files.write_bytes(corpus.path(shard), translator.as_parquet(rows, request))
    return [
        "--pair=en-de",
        f"--real={tmp_path / 'real'}",
        f"--translated={tmp_path / 'translated'}",
    ]


@pytest.mark.parametrize(
    ("more", "english", "german"),
    [
        (
            [],
            ["<BT> three", "<BT> six", "<BT> seven", "<BT> eight"],
            ["drei", "sechs", "sieben", "acht"],
        ),
        (["--ratio=1"], ["<BT> three", "<BT> six"], ["drei", "sechs"]),
        (["--ratio=0.5", "--tag="], ["three"], ["drei"]),
    ],
)
def test_real_pairs_come_first_and_translated_ones_are_tagged(
    flags, tmp_path, more, english, german, capsys
):
    output = tmp_path / "mixed"
    assert run(mix_pairs, *flags, f"--output={output}", *more) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["real"], record["translated"]) == (2, len(english))
    assert (record["real"], record["files"]["train.en"]["lines"]) == (2, 2 + len(english))
    assert (output / "train.en").read_text().splitlines() == REAL["en"] + english
    assert (output / "train.de").read_text().splitlines() == REAL["de"] + german
    assert (output / "valid.de").read_text().splitlines() == REAL["de"]
    assert json.loads((output / "data.json").read_text()) == record


def test_only_files_that_are_parallel_are_copied(flags, tmp_path, capsys):
    files_of = {
        "mono.en": 3,
        "mono.de": 2,
        "more.en": 1,
        "notes.txt": 2,
        "wmt14.en-de.en": 2,
        "wmt14.en-de.de.gz": 2,
    }
    for name, lines in files_of.items():
        write(tmp_path / "real" / name, ["a"] * lines)
    assert run(mix_pairs, *flags, f"--output={tmp_path / 'mixed'}") == 0
    names = [
        "data.json",
        "train.de",
        "train.en",
        "valid.de",
        "valid.en",
        "wmt14.en-de.de.gz",
        "wmt14.en-de.en",
    ]
    assert sorted(path.name for path in (tmp_path / "mixed").iterdir()) == names
    logged = capsys.readouterr().err
    assert "mono is not parallel, and is left out" in logged and "more is not parallel" in logged


def test_errors_name_the_flags_of_this_command(flags, tmp_path, capsys):
    assert run(mix_pairs, *flags, "--split=trian", f"--output={tmp_path / 'mixed'}") == 2
    assert f"--real={tmp_path / 'real'} --split=trian: " in capsys.readouterr().err
    plan = tmp_path / "translated" / "plan.json"
    plan.write_text(plan.read_text().replace('"format": "parquet"', '"format": "text"'))
    assert run(mix_pairs, *flags, f"--output={tmp_path / 'mixed'}") == 2
    assert f"--translated={tmp_path / 'translated'}: is text; translate" in capsys.readouterr().err


def test_a_ratio_that_takes_no_pair_is_refused(flags, tmp_path, capsys):
    assert run(mix_pairs, *flags, "--ratio=0.001", f"--output={tmp_path / 'mixed'}") == 2
    assert "--ratio=0.001: takes no pair beside " in capsys.readouterr().err


def test_translations_must_be_complete(flags, tmp_path, capsys):
    next(Path(tmp_path, "translated").glob("shard-000002*")).unlink()
    assert run(mix_pairs, *flags, f"--output={tmp_path / 'mixed'}") == 2
    assert "1 of 3 shards are missing" in capsys.readouterr().err
    assert not (tmp_path / "mixed").exists()
    assert (
        run(
            mix_pairs,
            *flags[:2],
            f"--translated={tmp_path / 'real'}",
            f"--output={tmp_path / 'mixed'}",
        )
        == 2
    )
    assert "has no plan.json; name an output of scripts.translate_corpus" in capsys.readouterr().err
    for ratio in ("0.0", "inf", "nan"):
        assert run(mix_pairs, *flags, f"--output={tmp_path / 'mixed'}", f"--ratio={ratio}") == 2
        assert f"--ratio={ratio}: must be above 0, and finite" in capsys.readouterr().err


def test_translations_of_older_commits_are_read(flags, tmp_path):
    plan = tmp_path / "translated" / "plan.json"
    record = json.loads(plan.read_text())
    del record["request"]["model"]
    plan.write_text(json.dumps(record))
    for path in sorted(Path(tmp_path, "translated").glob("shard*")):
        parquet.write_table(parquet.read_table(path).drop_columns("cut"), path)
    assert run(mix_pairs, *flags, f"--output={tmp_path / 'mixed'}") == 0
    german = ["drei", "sechs", "sieben", "acht", "neun zehn"]
    assert (tmp_path / "mixed" / "train.de").read_text().splitlines() == REAL["de"] + german


def test_a_damaged_shard_is_named(flags, tmp_path, capsys):
    path = sorted(Path(tmp_path, "translated").glob("shard*"))[1]
    content = path.read_bytes()
    path.write_bytes(content[:200])  # the footer is missing
    assert run(mix_pairs, *flags, f"--output={tmp_path / 'mixed'}") == 2
    logged = capsys.readouterr().err
    assert f"{path}: is damaged" in logged and "1 of 3 shards are missing" in logged
    # the footer is whole, and its pages are not
    path.write_bytes(content[:4] + b"\xff" * 300 + content[304:])
    assert run(mix_pairs, *flags, f"--output={tmp_path / 'mixed'}") == 2
    logged = capsys.readouterr().err
    assert (
        f"{path}: cannot be read (" in logged
        and "delete it, and scripts.translate_corpus makes it again" in logged
    )
    assert not (tmp_path / "mixed").exists()


def test_languages_may_have_regions(flags, tmp_path):
    for path in [*(tmp_path / "real").iterdir()]:
        path.rename(path.with_suffix({".en": ".zh-CN", ".de": ".pt-BR"}[path.suffix]))
    plan = tmp_path / "translated" / "plan.json"
    plan.write_text(plan.read_text().replace('["de", "en"]', '["pt", "zh"]'))
    assert run(mix_pairs, "--pair=zh-CN-pt-BR", *flags[1:], f"--output={tmp_path / 'mixed'}") == 0
    assert {path.suffix for path in (tmp_path / "mixed").iterdir()} == {".zh-CN", ".pt-BR", ".json"}


def test_translations_have_the_other_direction(flags, tmp_path, capsys):
    plan = tmp_path / "translated" / "plan.json"
    written = json.loads(plan.read_text())
    for languages, code in ((["de_DE", "en"], 0), (["en", "de"], 2)):
        plan.write_text(
            json.dumps(
                written | {"request": written["request"] | {"model": {"languages": languages}}}
            )
        )
        assert run(mix_pairs, *flags, f"--output={tmp_path / str(code)}") == code
    assert "is from en to de; for en-de, translate text of de into en" in capsys.readouterr().err


def test_empty_translations_are_no_pairs(flags, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(mix_pairs, "translated_pairs", lambda *_: iter(()))
    assert run(mix_pairs, *flags, f"--output={tmp_path / 'mixed'}") == 2
    assert (
        "all sentences were cut or have no translation" in capsys.readouterr().err
        and not (tmp_path / "mixed").exists()
    )
