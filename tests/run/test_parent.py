"""A run with its own vocabulary starts from a parent's: which vector each token gets."""

import jax
import numpy as np
import pytest

from tests.checkpoints.saved_runs import read_run
from tests.checkpoints.workdirs import make_workdir
from tests.data.files import write
from tests.run.test_fine_tuning import child, prepared, refusal
from tests.training.tiny import tiny_config
from transformer.data.tokenizers import vocabulary
from transformer.run.parent import Parent, find_origins, mean_vectors
from transformer.support.special_tokens import SPECIAL

TEXT = {"data.source": "text", "tokenizer.kind": "char", "tokenizer.vocab_size": "40"}


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parents")
    return make_workdir(folder / "parent", **TEXT, **{"model.output_bias": "true"})


def grown(parent, tmp_path, **changes):
    """Returns the configuration of a run on text with Cyrillic letters, and without some of the
    parent's digits.
    """
    (tmp_path / "more").mkdir()
    for name in ("train.in", "train.out", "valid.in", "valid.out"):
        write(tmp_path / "more" / name, ["1 2 да", "3 нет 4"] * 4)
    text = {key.replace(".", "__"): value for key, value in TEXT.items()} | {
        "model__output_bias": "true"
    }
    own = {
        "training__init_vocabulary": "own",
        "data__path": tmp_path / "more",
        "data__max_length": "32",
        "batch__tokens": "256",
    }
    return child(parent, **text | own | changes)


def test_tokens_that_both_have_keep_their_vectors_and_others_get_the_mean(parent, tmp_path, caplog):
    run = prepared(tmp_path / "run", grown(parent, tmp_path))
    with caplog.at_level("INFO"):
        parameters = jax.device_get(run.initial_state().parameters)
    old = read_run(parent, "best")[0]
    own = run.tokenizer.source.pieces
    pieces = vocabulary.load((parent / "tokenizer.model").read_bytes(), "parent").pieces
    parents = {piece: token for token, piece in enumerate(pieces)}
    table, old_table = (tree["decoder"]["embedding"]["table"] for tree in (parameters, old))
    kept = [piece for piece in own if piece in parents]
    new = [piece for piece in own if piece not in parents]
    assert {"1", "2", "3", "4"} < set(kept) and {"д", "а", "н", "е", "т"} == set(new)
    for piece in kept:
        np.testing.assert_array_equal(table[own.index(piece)], old_table[parents[piece]])
        assert parameters["output_bias"][own.index(piece)] == old["output_bias"][parents[piece]]
    for piece in new:
        np.testing.assert_allclose(
            table[own.index(piece)], old_table[SPECIAL:].mean(axis=0), rtol=1e-5, atol=1e-6
        )
    dropped = len(parents) - len(kept)
    assert (
        f"Vocabulary, both sides: {len(kept)} of {len(own)} tokens keep their vectors, 0 start"
        in caplog.text
    )
    assert f"5 from the mean of all; {dropped} of the parent's are dropped." in caplog.text
    np.testing.assert_array_equal(
        parameters["encoder"]["layers"][0]["feed_forward"]["inner"]["kernel"],
        old["encoder"]["layers"][0]["feed_forward"]["inner"]["kernel"],
    )


class Words:
    """A vocabulary of letters and some words."""

    def __init__(self, *words):
        self.pieces = ["<pad>", "<unk>", "<s>", "</s>", *words]

    def encode(self, texts):
        return [
            [self.pieces.index(x) if x in self.pieces else 1 for x in text.strip()]
            for text in texts
        ]


@pytest.mark.parametrize("objective", ["translation", "masked_lm"])
def test_the_output_of_source_tokens_is_not_that_of_target_tokens(objective):
    known = {"model__output_bias": True, "model__share_embeddings": "none"}
    run_config = tiny_config(**known)
    config = tiny_config(**known, training__objective=objective)
    parent = Parent(None, config, None, 0, "", "parameters", run_config)
    is_translation = objective == "translation"
    assert ("output_bias" in parent.origins) == is_translation
    assert ("projection.kernel" in parent.origins) == is_translation
    assert "encoder.layers.0.feed_forward.inner.kernel" in parent.origins


def test_a_new_piece_gets_the_mean_of_its_parts(caplog):
    with caplog.at_level("INFO"):
        origins = find_origins(Words("▁ab", "b", "▁xy", "ax"), Words("a", "b", "c"), "source")
    assert origins == [[0], [1], [2], [3], [4, 5], [5], [], []]
    assert caplog.messages == [
        "Vocabulary, source: 5 of 8 tokens keep their vectors, 1 start from those of their "
        "parts, 2 from the mean of "
        "all; 2 of the parent's are dropped."
    ]
    taken = np.arange(14, dtype=np.float32).reshape(7, 2)
    vectors = mean_vectors("decoder.embedding.table", taken, origins)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors[4:], [[9, 10], [10, 11], [10, 11], [10, 11]])
    np.testing.assert_array_equal(mean_vectors("projection.kernel", taken.T, origins), vectors.T)
    np.testing.assert_array_equal(mean_vectors("output_bias", taken[:, 0], origins), vectors[:, 0])


def test_vocabularies_for_one_side_and_for_both_do_not_fit(parent, tmp_path):
    config = grown(parent, tmp_path, tokenizer__shared="false", model__share_embeddings="none")
    message = refusal(tmp_path / "run", config)
    assert message.startswith(f"config.tokenizer.shared=False: {parent} has another tokenizer")
