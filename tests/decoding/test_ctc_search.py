"""CTC: loss and search against sums over all labels of a few frames."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import quickstart
from tests.decoding.models import make_decoding_config
from tests.meshes import one_device
from transformer.decoding import ctc_search
from transformer.decoding.beam_search import SourceBatch
from transformer.model.single_stack import BLANK, CtcTransformer, emits_token, left_align
from transformer.support.special_tokens import EOS, PAD
from transformer.training.encoders import ctc_loss, needed_frames

TOKENS, FRAMES = 3, 5
WIDE = 400  # a beam that holds all sequences of at most five tokens
VOCAB = 4 + TOKENS
LABELS = [BLANK, *range(4, VOCAB)]


def model_of(logits: np.ndarray) -> CtcTransformer:
    """Returns a model with these logits and one frame for each source token."""

    class Fixed(CtcTransformer):
        def __init__(self):
            self.frames_per_token = 1

        def hidden(self, source, rngs=None):
            return jnp.asarray(logits)

        def logits(self, hidden):
            return hidden

        output_table_and_bias = jnp.eye(VOCAB), None

    return Fixed()


def probabilities(log_p: np.ndarray) -> dict[tuple[int, ...], float]:
    """Returns the probability of each token sequence: the sum over all labels of the frames that
    give it.
    """
    sums = {}
    for labels in itertools.product(LABELS, repeat=len(log_p)):
        tokens = tuple(label for label, _ in itertools.groupby(labels) if label != BLANK)
        sums[tokens] = sums.get(tokens, 0.0) + np.exp(
            sum(log_p[i, label] for i, label in enumerate(labels))
        )
    return sums


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    values = np.random.default_rng(4).normal(size=(5, FRAMES, VOCAB)).astype(np.float32) * 2
    values[:, :, 1:4] = -40.0  # UNK, BOS and EOS
    return values


SOURCE = jnp.full((5, FRAMES), 9).at[3, 4:].set(PAD)
LENGTHS = [5, 5, 5, 4, 5]


def search(
    logits: np.ndarray, beam_size: int, n_best: int, length_penalty: float = 0.0, form: str = "gnmt"
):
    decoding_config = make_decoding_config(
        beam_size=beam_size, length_penalty=length_penalty, length_penalty_form=form
    )
    sentences = SourceBatch(SOURCE, jnp.array([1, 1, 1, 1, -1]), max_length=FRAMES)
    hypotheses, done = ctc_search.ctc_search([model_of(logits)], sentences, decoding_config, n_best)
    assert done.all()
    return jax.device_get(hypotheses)


def test_a_wide_beam_finds_the_most_probable_sequences_and_their_probabilities(logits):
    hypotheses = search(logits, beam_size=WIDE, n_best=5)
    log_p = np.asarray(jax.nn.log_softmax(logits))
    for row in range(4):
        exact = probabilities(log_p[row, : LENGTHS[row]])
        best = sorted(exact, key=exact.get, reverse=True)[:5]
        for n, tokens in enumerate(best):
            assert hypotheses.tokens[row, n][: len(tokens) + 1].tolist() == [*tokens, EOS]
            assert (hypotheses.tokens[row, n][len(tokens) + 1 :] == PAD).all()
            assert hypotheses.scores[row, n] == pytest.approx(np.log(exact[tokens]), abs=1e-4)
    assert np.isneginf(hypotheses.scores[4]).all()  # a filler row


@pytest.mark.parametrize("form", ["gnmt", "power"])
def test_the_length_penalty_counts_the_end_of_sentence_which_has_the_whole_log_probability(
    logits, form
):
    hypotheses = search(logits, beam_size=WIDE, n_best=5, length_penalty=0.6, form=form)
    log_p = np.asarray(jax.nn.log_softmax(logits))
    for row in range(4):
        exact = probabilities(log_p[row, : LENGTHS[row]])
        bases = {
            tokens: len(tokens) + 1 if form == "power" else (5 + len(tokens) + 1) / 6
            for tokens in exact
        }
        scores = {tokens: np.log(p) / bases[tokens] ** 0.6 for tokens, p in exact.items()}
        best = sorted(scores, key=scores.get, reverse=True)[:5]
        assert len({len(tokens) for tokens in best}) > 1
        for n, tokens in enumerate(best):
            assert hypotheses.tokens[row, n][: len(tokens) + 1].tolist() == [*tokens, EOS]
            assert hypotheses.scores[row, n] == pytest.approx(scores[tokens], abs=1e-4)
            of_tokens = np.zeros(FRAMES + 1)
            of_tokens[len(tokens)] = np.log(exact[tokens])
            np.testing.assert_allclose(
                hypotheses.token_log_probabilities[row, n], of_tokens, atol=1e-4
            )


def test_a_beam_of_one_takes_the_likeliest_label_of_each_frame(logits):
    hypotheses = search(logits, beam_size=1, n_best=1)
    for row in range(4):
        best = logits[row, : LENGTHS[row]].argmax(-1).tolist()
        tokens = [label for label, _ in itertools.groupby(best) if label != BLANK]
        assert hypotheses.tokens[row, 0][: len(tokens) + 1].tolist() == [*tokens, EOS]


@pytest.mark.first_case
@pytest.mark.parametrize("beam_size", [1, 4])
def test_rows_are_searched_in_chunks_with_equal_results(logits, beam_size, monkeypatch):
    at_once = search(logits, beam_size, n_best=1)
    monkeypatch.setattr(ctc_search, "CHUNK_BYTES", 1)
    for one, whole in zip(search(logits, beam_size, n_best=1), at_once, strict=True):
        np.testing.assert_array_equal(one, whole)


@pytest.mark.slow
def test_the_logits_of_all_frames_never_exist_at_once(monkeypatch):
    rows, frames, vocab = 16, 64, 8192
    model = CtcTransformer(quickstart.get_config().model, vocab, vocab, rngs=nnx.Rngs(0))
    graph, state = nnx.split(model)

    def search(state: nnx.State, source: jax.Array) -> jax.Array:
        sentences = SourceBatch(source, jnp.ones(rows, int), max_length=frames)
        return ctc_search.ctc_search(
            [nnx.merge(graph, state)], sentences, make_decoding_config(beam_size=1), n_best=1
        )

    def memory() -> int:
        source = jax.ShapeDtypeStruct((rows, frames // model.frames_per_token), jnp.int32)
        lowered = jax.jit(lambda *arguments: search(*arguments)).lower(state, source)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    whole = memory()
    monkeypatch.setattr(ctc_search, "CHUNK_BYTES", 4 * frames * vocab)
    assert memory() < whole - 0.8 * 4 * rows * frames * vocab


def test_the_loss_sums_over_all_alignments(logits):
    targets = [
        [4, 5, EOS, PAD, PAD],
        [6, EOS, PAD, PAD, PAD],
        [4, 4, EOS, PAD, PAD],
        [5, 6, 4, EOS, PAD],
        [EOS, *[PAD] * 4],
    ]
    batch = {"source": SOURCE, "target_output": jnp.array(targets)}
    loss, sums = ctc_loss(one_device(), model_of(logits), batch, None)
    log_p = np.asarray(jax.nn.log_softmax(logits))
    expected = 0.0
    for row, target in enumerate(targets):
        tokens = tuple(token for token in target if token > EOS)
        expected -= np.log(probabilities(log_p[row, : LENGTHS[row]])[tokens])
    assert loss == pytest.approx(expected, rel=1e-5)
    assert sums.tokens == 8


def test_targets_that_need_too_many_frames_have_no_loss(logits):
    possible = jnp.array([[4, 5, 6, EOS]] * 5)
    impossible = possible.at[3].set(jnp.array([4, 4, 4, EOS]))  # five frames of four
    assert needed_frames(jnp.where(impossible == EOS, PAD, impossible)).tolist() == [3, 3, 3, 5, 3]
    losses = [
        ctc_loss(one_device(), model_of(logits), {"source": SOURCE, "target_output": targets}, None)
        for targets in (possible, impossible)
    ]
    assert losses[1][1].tokens == losses[0][1].tokens - 3 == 12
    assert 0 < losses[1][0] < losses[0][0] < 1000


def test_repeated_labels_merge_unless_a_blank_separates_them():
    labels = jnp.array([[4, 4, 0, 4, 5, 0], [0, 6, 6, 6, 0, 0]])
    assert left_align(labels, emits_token(labels)).tolist() == [
        [4, 4, 5, 0, 0, 0],
        [6, 0, 0, 0, 0, 0],
    ]
