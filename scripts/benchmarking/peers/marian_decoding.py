"""Beam search by Marian in float32, with random weights that never prefer EOS.

Each thread translates a part of the batch.
"""

import tempfile
from pathlib import Path

import numpy as np
import pymarian

from scripts.benchmarking.worker import Prepared, Task

END = 0  # EOS in Marian's vocabularies
LOGIT_OF_END = -1e4
# Memory that a thread reserves.
MEGABYTES = 1024


def prepare(task: Task) -> Prepared:
    rows = len(task["source"])
    threads = task["threads"]
    # Text without EOS, which Marian adds.
    sentences = [[f"t{token}" for token in row[:-1]] for row in task["source"]]
    text = "\n".join(map(" ".join, sentences))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, vocabularies = make_model(folder, task, text)
        # A thread translates one mini-batch.
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
    """Returns the file of a model and the files of its two vocabularies.

    The model is trained for one update, which leaves it random.
    """
    # The vocabulary names each token t followed by its number.
    words = ["</s>", "<unk>", *(f"t{number}" for number in range(2, task["vocab_size"]))]
    lines = [f'"{word}": {number}\n' for number, word in enumerate(words)]
    vocabulary = folder / "vocabulary.yml"
    vocabulary.write_text("".join(lines))
    corpus = folder / "text"
    corpus.write_text(f"{text}\n")

    checkpoint = folder / "trained.npz"
    model = folder / "model.npz"
    vocabularies = [str(vocabulary)] * 2
    pymarian.Trainer(
        type="transformer",
        model=str(checkpoint),
        train_sets=[str(corpus)] * 2,
        vocabs=vocabularies,
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

    # The bias of the logits keeps EOS from ending an output.
    arrays = dict(np.load(checkpoint))
    arrays["decoder_ff_logit_out_b"][0, END] = LOGIT_OF_END
    np.savez(model, **arrays)
    return str(model), vocabularies
