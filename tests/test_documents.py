"""A pronoun whose gender only the sentence before tells: learned with data.context, and guessed
without it.
"""

import itertools
import random

import pytest

import transformer
from tests.data.files import write_pairs
from transformer import train
from transformer.config import cli

NOUNS = {
    "dog": ("der Hund", "er"),
    "cat": ("die Katze", "sie"),
    "horse": ("das Pferd", "es"),
    "cow": ("die Kuh", "sie"),
}
NOUNS |= {"bird": ("der Vogel", "er"), "sheep": ("das Schaf", "es")}
PLACES = {"here": "hier", "there": "dort", "outside": "draußen"}
VERBS = {"sleeps": "schläft", "eats": "frisst", "runs": "läuft", "waits": "wartet"}


def documents(count, seed):
    """Returns documents of two sentences; the first word of the second is the pronoun of the noun
    in the first.
    """
    combinations = list(itertools.product(NOUNS, PLACES, VERBS))
    chosen = random.Random(seed).choices(combinations, k=count)
    return [
        [
            (f"the {noun} is {place} .", f"{NOUNS[noun][0]} ist {PLACES[place]} ."),
            (f"it {verb} .", f"{NOUNS[noun][1]} {VERBS[verb]} ."),
        ]
        for noun, place, verb in chosen
    ]


def accuracy(folder, context):
    """Trains a model, and returns the part of the second sentences that it translates exactly."""
    settings = {
        "data.source": "text",
        "data.path": folder,
        "data.context": context,
        "data.valid_split": "valid",
        "data.test_split": "valid",
        "data.cache_dir": folder / "cache",
        "tokenizer.kind": "word",
        "training.steps": 300,
        "training.eval_every": 300,
        "optimizer.warmup_steps": 50,
    }
    flags = [f"--config.{key}={value}" for key, value in settings.items()]
    workdir = folder / f"run-{context}"
    argv = ["--config=configs/quickstart.py", f"--workdir={workdir}", *flags]
    assert cli.execute(train.make_parser(), train.main, argv) == 0
    tests = documents(60, seed=2)
    texts = [text for document in tests for text in (*(source for source, _ in document), "")]
    found = [best[0].text for best in transformer.load(workdir).translate(texts)]
    return sum(found[3 * i + 1] == document[1][1] for i, document in enumerate(tests)) / len(tests)


@pytest.mark.slow
def test_a_pronoun_needs_the_sentence_before(tmp_path):
    for stem, count in (("train", 2000), ("valid", 40)):
        pairs = [
            pair for document in documents(count, seed=len(stem)) for pair in (*document, ("", ""))
        ]
        write_pairs(tmp_path, stem, pairs)
    assert accuracy(tmp_path, 1) > 0.95
    assert accuracy(tmp_path, 0) < 0.6  # two of six nouns have each pronoun
