"""Beam search by Marian in float32, by threads with a part of the batch each; random weights never
prefer EOS.
"""

import tempfile
from pathlib import Path

import numpy as np
import pymarian

from scripts.benchmarking.worker import Prepared, Task

END = 0  # in Marian's vocabularies
LOGIT_OF_END = -1e4
MEGABYTES = 1024  # of memory that a thread reserves


def prepare(task: Task) -> Prepared:
    rows = len(task["source"])
    threads = task["threads"]
    text = "\n".join(" ".join(f"t{token}" for token in row[:-1]) for row in task["source"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, vocabularies = make_model(folder, task, text)
        translator = pymarian.Translator(
            models=[model],
            vocabs=vocabularies,
            beam_size=task["beam_size"],
            normalize=0.6,
            max_length_factor=task["output_tokens"] / len(task["source"][0]),
            cpu_threads=threads,
            mini_batch=-(-rows // threads),
            maxi_batch=threads,
            workspace=MEGABYTES,
            quiet=True,
            quiet_translation=True,
        )

    def translate() -> list[str]:
        return translator.translate(text).splitlines()

    tokens = sum(len(line.split()) for line in translate())
    return Prepared(translate, tokens, f"Marian {pymarian.__version__}")


def make_model(folder: Path, task: Task, text: str) -> tuple[str, list[str]]:
    """Returns the files of a model after one update, which leaves it random, and of its
    vocabularies.
    """
    words = ["</s>", "<unk>", *(f"t{number}" for number in range(2, task["vocab_size"]))]
    vocabulary, corpus, trained = (
        str(folder / name) for name in ("vocabulary.yml", "text", "trained.npz")
    )
    Path(vocabulary).write_text(
        "".join(f'"{word}": {number}\n' for number, word in enumerate(words))
    )
    Path(corpus).write_text(f"{text}\n")
    pymarian.Trainer(
        type="transformer",
        model=trained,
        train_sets=[corpus] * 2,
        vocabs=[vocabulary] * 2,
        dim_emb=task["d_model"],
        transformer_dim_ffn=task["d_ff"],
        transformer_heads=task["num_heads"],
        enc_depth=task["num_layers"],
        dec_depth=task["num_layers"],
        dim_vocabs=[len(words)] * 2,
        tied_embeddings_all=True,
        after="1u",
        cpu_threads=1,
        mini_batch=len(task["source"]),
        workspace=MEGABYTES,
        learn_rate=1e-5,
        seed=1,
        quiet=True,
        tempdir=str(folder),
    ).train()
    arrays = dict(np.load(trained))
    arrays["decoder_ff_logit_out_b"][0, END] = LOGIT_OF_END
    model = str(folder / "model.npz")
    np.savez(model, **arrays)
    return model, [vocabulary] * 2
