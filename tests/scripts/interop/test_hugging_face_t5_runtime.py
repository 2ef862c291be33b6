"""Folders of T5's family against Transformers, in float32 and in both directions."""

import json
import subprocess

import numpy as np
import pytest

from scripts.interop import hugging_face, workdirs
from scripts.interop.formats import FORMATS
from tests.scripts.interop import hugging_face_folders, t5_folders
from tests.scripts.interop.hugging_face_folders import write_json
from tests.scripts.interop.portable import answers, make_tokenizer, random_model
from tests.scripts.interop.test_hugging_face import logits

TEXTS = [
    *hugging_face_folders.ENGLISH,
    "the dog sees the old house",
    "the  dog",
    "sleeps",
    "old house the dog the house",
    "a house a dog a small dog runs",
    "house runs small the old dog",
]
# Prints logits (T, V) of a folder.
LOGITS = """
import json, sys, torch
from transformers import AutoModelForSeq2SeqLM
folder, source, previous = json.load(sys.stdin)
model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
if model.config.model_type == "umt5":
    settings = json.load(open(folder + "/config.json"))
    model.config.tie_word_embeddings = settings.get("tie_word_embeddings", True)
with torch.inference_mode():
    outputs = model(torch.tensor([source]), decoder_input_ids=torch.tensor([previous]))
print(json.dumps(outputs.logits[0].tolist()))
"""
# Saves a folder again as Transformers does.
SAVE = """
import json, sys
from transformers import AutoModelForSeq2SeqLM, T5Tokenizer
folder, saved, extra_ids = json.load(sys.stdin)
T5Tokenizer.from_pretrained(folder, extra_ids=extra_ids).save_pretrained(saved)
AutoModelForSeq2SeqLM.from_pretrained(folder).save_pretrained(saved, max_shard_size="5KB")
"""


def run(python, program, *arguments):
    process = subprocess.run(
        [python, "-c", program],
        input=json.dumps(arguments),
        text=True,
        check=True,
        capture_output=True,
    )
    return process.stdout


def change_search(folder):
    """Forbids sentinels, which Transformers leaves out of texts."""
    path = folder / "generation_config.json"
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    settings = json.loads(path.read_text()) | {
        "suppress_tokens": [size - 4, size - 3, size - 2],
        "num_beams": 4,
        "early_stopping": True,
        "max_length": 42,
    }
    write_json(path, settings)


def through_a_workdir(model, path):
    path.mkdir()
    workdirs.write(model, path)
    return workdirs.from_workdir(path, "best", 1)


def check_equal(model, folder, python):
    """Compares scores and translations, and returns those of Transformers."""
    ours, theirs = answers(model, folder, FORMATS["huggingface"], python, TEXTS)
    np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-4)
    assert len(set(ours["greedy"])) > 1
    assert [a.split() for a in ours["greedy"]] == [b.split() for b in theirs["greedy"]]
    # At the length limit Transformers gives the end the probability 1. The text there has many
    # tokens, in any segmentation.
    lengths = map(len, model.tokenizer.target.encode(theirs["beam"]))
    pairs = zip(ours["beam"], theirs["beam"], ours["ended"]["beam"], lengths, strict=True)
    ended = [
        (a.split(), b.split()) for a, b, has_ended, length in pairs if has_ended and length < 9
    ]
    assert len(ended) > 1
    assert [a for a, _ in ended] == [b for _, b in ended]
    return theirs


@pytest.mark.slow
@pytest.mark.parametrize("variant", t5_folders.VARIANTS)
def test_transformers_computes_and_translates_the_same(interop_python, tmp_path, variant):
    folder, exported = tmp_path / "t5", tmp_path / "exported"
    t5_folders.write_folder(folder, variant)
    change_search(folder)
    source = [5, 6, 3, 10, 13, 24, 9, 18, 1]
    previous = [0, 7, 12, 14, 20]
    model = hugging_face.read(folder)
    size = model.tokenizer.source.size
    ids = [size - 1, 2, 0, 1, *range(3, size - 1)]
    theirs = np.array(json.loads(run(interop_python, LOGITS, str(folder), source, previous)))
    ours = logits(
        model,
        [ids.index(id_) for id_ in source],
        [ids.index(id_) for id_ in previous[1:]],
    )
    np.testing.assert_allclose(ours, theirs[:, ids], atol=1e-4)

    model = through_a_workdir(model, tmp_path / "workdir")
    exported.mkdir()
    hugging_face.write(model, exported, None)
    theirs = check_equal(model, folder, interop_python)
    _, again = answers(model, exported, FORMATS["huggingface"], interop_python, TEXTS)
    assert (again["greedy"], again["beam"]) == (theirs["greedy"], theirs["beam"])
    np.testing.assert_allclose(again["scores"], theirs["scores"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["t5", "t5 v1.1", "mt5", "a tied umt5"])
def test_a_folder_that_transformers_saved_comes_in(interop_python, tmp_path, variant):
    folder, saved = tmp_path / "t5", tmp_path / "saved"
    t5_folders.write_folder(folder, variant)
    run(interop_python, SAVE, str(folder), str(saved), t5_folders.EXTRA_IDS)
    assert not (saved / "spiece.model").exists() and not (saved / "model.safetensors").exists()
    change_search(saved)
    expected = hugging_face.read(folder)
    model = hugging_face.read(saved)
    assert model.tokenizer.source.pieces == expected.tokenizer.source.pieces
    for name, array in expected.parameters.items():
        np.testing.assert_array_equal(model.parameters[name], array)
    check_equal(through_a_workdir(model, tmp_path / "workdir"), saved, interop_python)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"model__positions": "t5", "model__share_embeddings": "all"},
        {"model__positions": "t5", "model__activation": "swiglu", "model__d_k": 6, "model__d_v": 6},
        {"model__positions": "t5_per_layer", "model__num_layers": 2},
    ],
    ids=str,
)
def test_transformers_computes_what_is_trained_here(interop_python, tmp_path, changes):
    family = {
        "model__attention": "dot_product_unscaled",
        "model__feed_forward_bias": False,
        "model__norm": "rms_norm",
        "model__norm_position": "pre",
        "model__share_embeddings": "inputs",
        "tokenizer__kind": "unigram",
    }
    model = random_model(make_tokenizer(28, texts=TEXTS * 5), **family | changes)
    hugging_face.write(model, tmp_path, None)
    ours, theirs = answers(model, tmp_path, FORMATS["huggingface"], interop_python, TEXTS)
    np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-4)
    assert ours["greedy"] == theirs["greedy"]
