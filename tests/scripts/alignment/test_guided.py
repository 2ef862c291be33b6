"""Guided alignment on generated text, whose links are known: the error rate with and without it."""

import random

import pytest

from scripts.alignment.links import choose_heads, error_rate, word_links
from tests.data.files import write, write_pairs
from transformer import load, train
from transformer.api import Model
from transformer.config import cli

WORDS = [
    consonant + vowel + last for consonant in "bdfgklmnprst" for vowel in "aeiou" for last in "nrs"
]
PARTICLE = "zu"  # in front of the translations of some words, to which it is linked too


def generate(count: int, seed: int) -> list[tuple[str, str, set[tuple[int, int]]]]:
    """Returns sentences, their translations and links: neighbours change places, and some words
    become two.
    """
    chooser, sentences = random.Random(seed), []
    for _ in range(count):
        source = chooser.choices(WORDS, k=chooser.randint(4, 10))
        order = [
            number ^ 1 if number ^ 1 < len(source) else number for number in range(len(source))
        ]
        target, links = [], set()
        for number in order:
            word = source[number][::-1].upper()
            for text in [PARTICLE, word] if source[number].endswith("s") else [word]:
                links.add((number, len(target)))
                target.append(text)
        sentences.append((" ".join(source), " ".join(target), links))
    return sentences


def trained(folder, **changes) -> Model:
    settings = {
        "data.source": "text",
        "data.path": folder,
        "data.valid_split": "valid",
        "data.cache_dir": folder / "cache",
        "model.attention_implementation": "plain",
        "tokenizer.vocab_size": 120,
        "training.steps": 400,
        "training.eval_every": 400,
        "optimizer.warmup_steps": 50,
    }
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    workdir = folder / f"run-{len(changes)}"
    flags = [f"--config.{key}={value}" for key, value in settings.items()]
    argv = ["--config=configs/quickstart.py", f"--workdir={workdir}", *flags]
    assert cli.execute(train.make_parser(), train.main, argv) == 0
    return load(workdir)


def rate(model: Model, names: str) -> float:
    """Returns the alignment error rate of these heads, in percent."""
    sentences = generate(100, seed=3)
    attentions = [model.attention(source, target) for source, target, _ in sentences]
    heads = choose_heads(model.config.model, names)
    gold = [(frozenset(links), frozenset(links)) for _, _, links in sentences]
    return 100 * error_rate([word_links(attention, heads) for attention in attentions], gold)[0]


@pytest.mark.slow
def test_guided_heads_align(tmp_path):
    sentences = generate(4000, seed=1)
    write_pairs(tmp_path, "train", sentences)
    write_pairs(tmp_path, "valid", generate(100, seed=2))
    write(
        tmp_path / "links",
        [" ".join(f"{s}-{t}" for s, t in sorted(links)) for _, _, links in sentences],
    )
    plain = trained(tmp_path)
    guided = trained(
        tmp_path, data__mixture=f"('alignments={tmp_path}/links',)", training__guided_heads="2.1"
    )
    assert rate(guided, "2.1") < min(9, rate(plain, "average") / 2)  # 6.0 and 16.3
