"""Model cards: the metadata and facts of records, for imports, exports and fine-tuned models."""

import json
from pathlib import Path

import pytest
import yaml

from scripts import export, import_model
from scripts.interop import model_card
from tests.checkpoints.workdirs import make_workdir, run
from tests.scripts.evaluated import add_evaluation
from tests.scripts.interop import hugging_face_folders
from transformer.support import files
from transformer.workdir import Workdir

CARD = """---
license: cc-by-4.0
datasets:
- opus
thumbnail: elsewhere.png
---
# A card
---
"""


def write_parent(workdir: Path, parent: Path) -> None:
    files.write_json(Workdir(workdir).parent, {"workdir": str(parent), "step": 0, "checksum": ""})


def split_card(folder: Path) -> tuple[dict, str]:
    _, metadata, text = (folder / "README.md").read_text("utf-8").split("---\n", 2)
    return yaml.safe_load(metadata), text


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    hugging_face_folders.write_folder(folder / "opus", is_shared=True)
    (folder / "opus" / "README.md").write_text(CARD)
    (folder / "opus" / "LICENSE").write_text("Attribution 4.0\n")
    flags = ("--data.source_language=en", "--data.target_language=de", "--runtime=none")
    source, output = f"--from={folder / 'opus'}", f"--output={folder / 'imported'}"
    assert run(import_model, source, output, *flags) == 0
    return folder / "imported"


def test_an_import_keeps_the_licence_and_names_its_files(imported):
    metadata, text = split_card(imported)
    assert metadata == {
        "language": ["en", "de"],
        "license": "cc-by-4.0",
        "datasets": ["opus"],
        "pipeline_tag": "translation",
    }
    origin = json.loads((imported / "parent.json").read_text())
    assert f"| model.safetensors | {origin['files']['model.safetensors']} |" in text
    assert "## Certificate\n\nuncertified: --runtime=none.\n" in text
    assert "## Licence\n\n```text\nAttribution 4.0\n```\n" in text
    # Nothing is known about the training.
    assert "## Training" not in text and "## Scores" not in text


def test_an_export_has_the_scores_of_its_checkpoint_and_the_licence_of_the_import(
    imported, tmp_path
):
    workdir = make_workdir(tmp_path / "tuned")
    environment = {"commit": "0123abcd", "uncommitted_changes": False, "cpu_count": 2}
    files.write_json(workdir / "environment.json", environment | {"devices": ["cpu"]})
    record = {"step": 30, "split": "train", "loss": 1.0, "seconds": 4321.0}
    (workdir / "metrics.jsonl").write_text(f"{json.dumps(record)}\n")
    origin = {"workdir": str(imported), "step": 0, "checksum": ""}
    files.write_json(Workdir(workdir).parent, origin)
    Workdir(workdir).evaluations.mkdir(exist_ok=True)
    texts = ["1 2 3 4 5 6"] * 4
    add_evaluation(workdir, "best", texts, texts, step=20)
    add_evaluation(workdir, "last", texts, ["7 8 9 10 11 12"] * 4, step=30)
    output = tmp_path / "exported"
    assert run(export, f"--workdir={workdir}", "--format=safetensors", f"--output={output}") == 0

    metadata, text = split_card(output)
    assert metadata["license"] == "cc-by-4.0" and metadata["language"] == ["in", "out"]
    ((result,),) = [model["results"] for model in metadata["model-index"]]
    assert result["dataset"]["name"].endswith(", valid")
    scores = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert scores["bleu"] == pytest.approx(100.0) and len(scores) > 1
    assert text.count("| valid | bleu | 100.00 |") == 1 and "| 0.00 |" not in text
    assert "Trained by commit 0123abcd in 4,321 seconds on cpu." in text
    assert "The initial parameters are those of step 0 of imported." in text
    assert "Step 20." in text and "Attribution 4.0" in text and str(tmp_path) not in text


def test_a_language_model_has_a_card_without_scores(tmp_path):
    changes = {"training.objective": "causal_lm", "data.source_language": ""}
    changes |= {"training.eval_bleu": "False", "checkpoint.best_metric": "loss"}
    workdir = make_workdir(tmp_path / "language_model", **changes)
    record = {"step": 30, "split": "train", "loss": 1.0, "seconds": 1.0}
    (workdir / "metrics.jsonl").write_text(f"{json.dumps(record)}\n")
    output = tmp_path / "exported"
    assert run(export, f"--workdir={workdir}", "--format=safetensors", f"--output={output}") == 0
    _, text = split_card(output)
    assert "## Training" in text and "## Scores" not in text


@pytest.mark.parametrize(
    "card",
    ["---\na: [\n---\n", "no metadata", "---\n- a\n---\n", "--- \n"]
    + ["---\ndatasets:\n- 2020-01-01\n---\n", "---\nlicense: [.nan]\n---\n"],
)
def test_a_card_without_usable_metadata_gives_none(card, tmp_path):
    (tmp_path / "README.md").write_text(card)
    assert model_card.read_metadata(tmp_path) == {}


def test_a_card_that_is_no_text_gives_none(tmp_path):
    (tmp_path / "README.md").write_bytes(b"---\n\xff\xfe\n---\n")
    assert model_card.read_metadata(tmp_path) == {}


def test_workdirs_that_are_their_own_ancestors_have_no_import(tmp_path):
    # A run was fine-tuned, and then took the name of its parent.
    one, two = (make_workdir(tmp_path / name) for name in ("one", "two"))
    write_parent(one, two)
    write_parent(two, one)
    flags = (f"--workdir={one}", "--format=safetensors", f"--output={tmp_path / 'exported'}")
    assert run(export, *flags) == 0
    assert "license" not in split_card(tmp_path / "exported")[0]


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (CARD.replace("\n", "\r\n"), {"license": "cc-by-4.0", "datasets": ["opus"]}),
        (f"# A card\n{CARD}", {}),
        ("# A card\n---\ntwo\n---\nrules\n", {}),
    ],
)
def test_metadata_stand_at_the_beginning_of_a_card(tmp_path, card, expected):
    (tmp_path / "README.md").write_bytes(card.encode())
    assert model_card.read_metadata(tmp_path) == expected
