"""MarianMTModel and Pegasus folders against Transformers, in float32 and in both directions."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from scripts.interop import hugging_face, hugging_face_export, workdirs
from scripts.interop.formats import FORMATS
from scripts.interop.portable import NEVER
from tests.scripts.interop import hugging_face_folders as folders
from tests.scripts.interop.portable import answers, make_tokenizer, random_model
from transformer.support.special_tokens import BOS

TEXTS = [*folders.ENGLISH, "the dog sees the old house", "the dog"]
SAVE = """
import json, sys, torch
from transformers import MarianConfig, MarianMTModel
folder, settings, end = json.load(sys.stdin)
torch.manual_seed(0)
model = MarianMTModel(MarianConfig(**settings))
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:
            parameter.normal_(std=0.5)
    model.final_logits_bias.normal_()
    model.final_logits_bias[0, 0] += end  # or most translations would reach the length limit
    for table in {model.get_encoder().embed_tokens, model.get_decoder().embed_tokens}:
        table.weight[table.padding_idx] = 0
model.save_pretrained(folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_shared", "changes", "search", "end"),
    [
        (True, {"activation_function": "relu"}, {"early_stopping": True}, 5),
        (
            True,
            {"activation_function": "gelu", "tie_word_embeddings": False, "decoder_layers": 2},
            {"early_stopping": False, "no_repeat_ngram_size": 2, "min_length": 4},
            5,
        ),
        (
            False,
            {"activation_function": "swish"},
            {"early_stopping": "never", "suppress_tokens": [5, 7, 9]},
            9,
        ),
    ],
    ids=str,
)
def test_a_model_of_transformers_comes_in_and_goes_back(
    interop_python, tmp_path, is_shared, changes, search, end
):
    folder, exported = tmp_path / "opus", tmp_path / "exported"
    folders.write_folder(folder, is_shared=is_shared)
    own = json.loads((folder / "generation_config.json").read_text())
    settings = (
        json.loads((folder / "config.json").read_text())
        | {"d_model": 16, "max_position_embeddings": 64}
        | changes
    )
    (folder / "model.safetensors").unlink()
    request = json.dumps([str(folder), settings, end])
    subprocess.run(
        [interop_python, "-c", SAVE], input=request, text=True, check=True, capture_output=True
    )
    folders.write_json(folder / "generation_config.json", own | search | {"num_beams": 5})
    model = hugging_face.read(folder)
    (tmp_path / "workdir").mkdir()
    workdirs.write(model, tmp_path / "workdir")
    model = workdirs.from_workdir(tmp_path / "workdir", "best", 1)
    exported.mkdir()
    hugging_face_export.write(model, exported, None)
    for path in (folder, exported):
        texts = [*TEXTS, ">>fra<< the dog sees the house"]
        ours, theirs = answers(model, path, FORMATS["huggingface"], interop_python, texts)
        np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-4)
        for kind in ("greedy", "beam"):
            # At the length limit Transformers gives the end the probability 1.
            pairs = zip(ours[kind], theirs[kind], ours["ended"][kind], strict=True)
            ended = [(a, b) for a, b, has_ended in pairs if has_ended]
            assert len(ended) > len(texts) / 2
            assert [a for a, _ in ended] == [b for _, b in ended]


@pytest.mark.slow
def test_a_conversion_of_transformers_to_ctranslate2_comes_in(interop_python, tmp_path):
    """Its configuration says that it adds no EOS to sources, since MarianTokenizer has done so."""
    folder, converted = tmp_path / "opus", tmp_path / "converted"
    folders.write_folder(folder)
    (folder / "model.safetensors").unlink()
    settings = json.loads((folder / "config.json").read_text()) | {
        "d_model": 16,
        "max_position_embeddings": 512,
    }
    request = json.dumps([str(folder), settings, 5])
    subprocess.run(
        [interop_python, "-c", SAVE], input=request, text=True, check=True, capture_output=True
    )
    converter = Path(interop_python).with_name("ct2-transformers-converter")
    flags = [
        "--model",
        folder,
        "--output_dir",
        converted,
        "--copy_files",
        "source.spm",
        "target.spm",
    ]
    subprocess.run([converter, *flags], check=True, capture_output=True)
    (tmp_path / "workdir").mkdir()
    workdirs.write(FORMATS["ctranslate2"].read(converted), tmp_path / "workdir")
    model = workdirs.from_workdir(tmp_path / "workdir", "best", 1)
    ours, theirs = answers(model, folder, FORMATS["huggingface"], interop_python, TEXTS)
    # in its scores, padding has a probability, which the converter removes
    assert ours["greedy"] == theirs["greedy"]
    ours, theirs = answers(model, converted, FORMATS["ctranslate2"], interop_python, TEXTS)
    assert ours["greedy"] == theirs["greedy"]
    np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "changes"),
    [
        ((28,), {}),
        ((28, 29), {"share_embeddings": "none", "attention_bias": True, "output_bias": True}),
        (
            (28,),
            {
                "share_embeddings": "target",
                "positions": "sinusoidal_marian",
                "activation": "gelu_exact",
            },
        ),
        ((28,), {"decoder_start": "zero", "output_bias": True}),
        ((28,), {"norm_position": "pre", "activation": "swish"}),
        (
            (28,),
            {
                "norm_position": "pre",
                "share_embeddings": "none",
                "decoder_start": "zero",
                "output_bias": True,
            },
        ),
    ],
    ids=str,
)
def test_transformers_computes_what_is_exported(interop_python, tmp_path, sizes, changes):
    changes = {f"model__{key}": value for key, value in changes.items()}
    model = random_model(
        make_tokenizer(*sizes), model__layer_norm_epsilon=1e-5, model__d_model=16, **changes
    )
    if "output_bias" in model.parameters:
        bias = model.parameters["output_bias"].copy()
        bias[BOS] = NEVER  # as in training, which has no BOS to predict
        model = model._replace(parameters=model.parameters | {"output_bias": bias})
    hugging_face_export.write(model, tmp_path, None)
    ours, theirs = answers(model, tmp_path, FORMATS["huggingface"], interop_python, TEXTS)
    np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-4)
    # Beams reach the length limit, where Transformers gives the end the probability 1.
    assert ours["greedy"] == theirs["greedy"]
