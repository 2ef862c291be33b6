"""The work of a compiled search, against numbers worked out by hand."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from scripts.planning import hlo, roofline, search_estimate
from scripts.planning.devices import parse_target
from scripts.planning.lengths import Data
from scripts.planning.search_estimate import SearchEstimate
from tests.scripts.planning.test_roofline import GPU
from transformer.config.loading import load_file
from transformer.support.errors import UserError

D, FF, VOCAB, BEAMS, SOURCE = 16, 32, 40, 4, 16
TINY = {
    "model.num_layers": 1,
    "model.d_model": D,
    "model.d_ff": FF,
    "model.num_heads": 2,
    "decoding.beam_size": BEAMS,
    "decoding.max_source_length": 64,
    "decoding.max_extra_length": 50,
    # Eight rows of 16 + 8 positions.
    "decoding.batch_tokens": BEAMS * 8 * 24,
}
# Source and target lengths: ten pairs in two batches of 8 x 16, and two longer ones.
LENGTHS = [(7, 9), *[(9, 5)] * 7, (12, 10), (13, 30), (30, 20), (31, 20)]


def estimate(**settings: object) -> SearchEstimate:
    overrides = [(key, str(value)) for key, value in (TINY | settings).items()]
    config = load_file("configs/base.py", overrides)
    corpus = SimpleNamespace(all_pairs=lambda: SimpleNamespace(lengths=np.array(LENGTHS)))
    data = Data(corpus, (VOCAB, VOCAB), "")
    return search_estimate.estimate_search(config, parse_target("h100"), jax.devices()[:1], data)


@pytest.fixture(scope="module")
def estimated() -> SearchEstimate:
    return estimate()


def test_the_batches_are_those_of_the_decoder(estimated):
    assert (estimated.batch.rows, estimated.batch.length) == (8, SOURCE)
    assert estimated.output_limit == SOURCE + 8
    # The longest output of a batch has 9 tokens, or 24 of the 30.
    assert estimated.steps == pytest.approx((9 + 24) / 2)
    assert estimated.tokens == pytest.approx((9 + 7 * 5 + 10 + 24) / 2)


def test_the_products_are_those_of_the_model(estimated):
    # Two products of a number count for each weight and each pair of positions.
    rows = 8
    weights = 4 * D * D + 2 * D * D + 2 * D * FF + D * VOCAB
    # A hypothesis attends to the entries of all hypotheses of its sentence.
    entries = BEAMS * estimated.output_limit + SOURCE
    step = 2 * rows * BEAMS * (weights + 2 * D * entries)
    assert estimated.step.flops == pytest.approx(step, rel=0.01)

    encoder = 4 * D * D + 2 * D * FF + 2 * D * SOURCE
    memory = 2 * D * D  # keys and values of cross-attention
    assert estimated.start.flops == pytest.approx(2 * rows * SOURCE * (encoder + memory), rel=0.01)


def test_a_batch_takes_its_start_and_its_steps(estimated):
    expected = estimated.start.seconds + 16.5 * estimated.step.seconds
    assert estimated.seconds == pytest.approx(expected)
    assert 0 < estimated.memory.temporaries < estimated.memory.used < 10**7
    # The matrices are in bfloat16 or float32, whatever this processor computes fast.
    weights = estimated.memory.state["weights"]
    assert 2 * estimated.parameters < weights < 4 * estimated.parameters + 10**4


def test_the_loop_is_apart_from_the_rest():
    rest, body = search_estimate.split_loop(hlo.parse(GPU))
    names = [[kernel.instruction.name for kernel in roofline.kernels(program.entry)]
             for program in (rest, body)]  # fmt: skip
    assert names == [["y", "z", "gather", "both", "result"], ["row", "next"]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {
                "training.objective": "masked_lm",
                "data.target_language": "",
                "training.eval_bleu": False,
                "checkpoint.best_metric": "loss",
            },
            "--search: training.objective=masked_lm has no translations",
        ),
        (
            {
                "training.objective": "ctc",
                "training.label_smoothing": 0.0,
                "decoding.strategy": "ctc",
            },
            "--search: decoding.strategy=ctc does not search by steps",
        ),
    ],
)
def test_a_search_without_steps_is_named(settings, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        estimate(**settings)
