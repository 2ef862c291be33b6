"""Groups of candidates: their rewards in batches, groups that are dropped, and unusable files."""

import numpy as np
import pytest

from tests.data.files import pair_tokens, text_config, write, write_pairs
from tests.meshes import one_device
from transformer.data.batches.loader import DataPosition, Loader
from transformer.data.corpus import corpus, encoding
from transformer.data.tokenizers import tokenizer
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS

SIZE = 3
# The target of pair n has the word n + 1 times, so that its length identifies it.
PAIRS = [(f"source {n // SIZE}", " ".join(["ja"] * (n + 1))) for n in range(30)]
REWARDS = [-1 + 0.25 * n for n in range(30)]


def prepared(folder, pairs=PAIRS, rewards=REWARDS, **changes):
    """Returns the corpus of a mixture of these candidates, and its configuration."""
    write_pairs(folder, "train", pairs)
    write(folder / "rewards", rewards)
    config = text_config(folder, folder / "cache")
    config.data.mixture = ("rewards=rewards",)
    config.tokenizer.kind = "word"
    config.data.max_length = 32
    config.batch.update({"plan": "groups", "candidates": SIZE, "tokens": 320, "row_multiple": 1})
    config.batch.length_multiple = 1
    config.training.candidate_loss = "minimum_risk"
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return corpus.prepare(config, tokenizer.prepare(config, folder), "train"), config


def refusal(folder, *arguments, **changes) -> str:
    with pytest.raises(UserError) as caught:
        prepared(folder, *arguments, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_each_row_of_a_batch_has_the_reward_of_its_pair(tmp_path):
    train, config = prepared(tmp_path)
    seen = 0
    with Loader(train, config, DataPosition(0, 0), one_device()) as batches:
        for _ in range(len(batches.epoch_plan)):
            _, arrays, _ = next(batches)
            rewards = np.asarray(arrays["rewards"])
            assert rewards.shape == (len(arrays["source"]) // SIZE, SIZE)
            has_pair = np.asarray(arrays["target_output"] == EOS).any(axis=1)
            lengths = np.asarray(arrays["target_output"] == EOS).argmax(axis=1)
            expected = np.where(has_pair, -1 + 0.25 * (lengths - 1), 0.0)
            np.testing.assert_array_equal(rewards.ravel(), expected.astype(np.float32))
            seen += has_pair.sum()
    assert seen == len(PAIRS)


@pytest.mark.parametrize("chunk", [7, 8192])
def test_a_group_is_dropped_with_any_of_its_candidates(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr(encoding, "_CHUNK", chunk)
    pairs = list(PAIRS)
    pairs[4] = (pairs[4][0], " ".join(["ja"] * 40))
    pairs[17] = (pairs[17][0], "")
    train, _ = prepared(tmp_path, pairs)
    dropped = {reason: count for reason, count in train.report["dropped"].items() if count}
    assert dropped == {"too_long": 1, "empty": 1, "candidate": 4}
    kept = [n for n in range(30) if n // SIZE not in (1, 5)]
    assert [len(pair_tokens(train, i)[1]) for i in range(len(train))] == [n + 1 for n in kept]
    rewards = train.annotations(np.arange(len(train))).rewards
    assert rewards.tolist() == [REWARDS[n] for n in kept]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            PAIRS[:-1],
            "train.en, line 28: begins 2 lines with one source; config.batch.candidates=3",
        ),
        (PAIRS[:4] + PAIRS[5:], "train.en, line 4: begins 2 lines"),
        (PAIRS[:3] + PAIRS[:3] + PAIRS[6:], "train.en, line 1: begins 6 lines"),
    ],
)
def test_a_group_of_another_size_is_named_with_its_line(tmp_path, pairs, message):
    assert message in refusal(tmp_path, pairs, REWARDS[: len(pairs)])


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (REWARDS[:-1], "rewards: has 29 lines for 30 pairs of train"),
        ([*REWARDS[:-1], "nan"], "rewards, line 30: 'nan' must be a number, and finite"),
        ([*REWARDS[:-1], "1e39"], "rewards, line 30: '1e39' must be a number, and finite"),
        (["good", *REWARDS[1:]], "rewards, line 1: 'good' must be a number"),
        (["inf", *REWARDS[1:]], "rewards, line 1: 'inf' must be a number"),
    ],
)
def test_unusable_rewards_are_named_with_their_line(tmp_path, rewards, message):
    assert message in refusal(tmp_path, PAIRS, rewards)


def test_equal_rewards_need_a_likelihood(tmp_path, caplog):
    rewards = [n // SIZE for n in range(30)]  # equal within each group
    message = "the candidates of each source have equal rewards"
    assert message in refusal(tmp_path, PAIRS, rewards)
    prepared(tmp_path, PAIRS, rewards, training__likelihood_weight=1.0)
    assert message in caplog.text
