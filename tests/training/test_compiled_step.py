"""Properties of one update: invariances, accumulation, dropout, precision and compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.data.sentences import random_sentences
from tests.model.models import flat, logits_of
from tests.training.tiny import VOCAB_SIZE, distance, make_batch, setup, tiny_config
from transformer.data.batches.collation import assemble_batch
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.batches.loader import PLANS
from transformer.support.special_tokens import PAD
from transformer.training.optimizer import make_optimizer

pytestmark = pytest.mark.long

LONG = [(5, 6), (6, 4), (3, 6), (6, 6)]
SHORT = [(1, 1), (2, 0)]


def stacked(*batches):
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


# Relative differences that the order of sums explains. Gradients rounded to bfloat16 would differ
# by 1e-3 or more.
ROUNDING = {"float32": 1e-6, "bfloat16": 5e-4}
in_float32 = pytest.mark.parametrize("plain", ["float32"], indirect=True)


@pytest.fixture(scope="module", params=ROUNDING)
def plain(request):
    """A setup without dropout: an update depends only on the state and the sentences."""
    return setup(tiny_config(model__dropout=0.0, model__dtype=request.param))


@pytest.fixture(scope="module")
def dropping():
    return setup(tiny_config(model__dropout=0.3, training__ema_decay=0.75))


@pytest.mark.first_case
def test_accumulation_equals_the_big_batch(plain):
    # 26 target tokens and 3: parts weighed equally, as by `optax.MultiSteps`, would give another
    # update.
    long, short = make_batch(LONG, 4, 7, seed=0), make_batch(SHORT, 4, 7, seed=1)
    whole, whole_metrics = plain.after([stacked(long, short)])
    parts, parts_metrics = plain.after([long, short])
    tolerance = ROUNDING[plain.step.config.model.dtype]
    assert distance(whole.parameters, parts.parameters) < tolerance
    assert distance(whole_metrics, parts_metrics) < tolerance
    assert whole_metrics["sums"].tokens == 29
    start = jax.device_get(plain.initializer.create().parameters)
    falls = [
        jax.tree.map(np.subtract, start, plain.after([batch])[0].parameters)
        for batch in (long, short)
    ]
    by_tokens = jax.tree.map(lambda x, y: (26 * x + 3 * y) / 29, *falls)
    assert distance(jax.tree.map(np.subtract, start, parts.parameters), by_tokens) < 1e-5
    assert parts.step == whole.step == 1


def test_filler_rows_and_padding_change_nothing(plain):
    batch = make_batch(LONG, 4, 7, seed=0)
    padded = {name: np.pad(array, ((0, 4), (0, 3))) for name, array in batch.items()}
    few, few_metrics = plain.after([batch])
    many, many_metrics = plain.after([padded])
    tolerance = ROUNDING[plain.step.config.model.dtype]
    assert distance(few.parameters, many.parameters) < tolerance
    assert distance(few_metrics, many_metrics) < tolerance


@in_float32
def test_equal_weights_of_pairs_change_nothing_however_small(plain):
    batch = make_batch(LONG, 4, 7, seed=0)
    weighted = batch | {"target_weights": np.full(batch["target_output"].shape, 2**-12, np.float32)}
    (_, metrics), (_, weighted_metrics) = plain.after([batch]), plain.after([weighted])
    assert weighted_metrics["sums"].tokens == metrics["sums"].tokens / 2**12 < 1
    np.testing.assert_allclose(
        weighted_metrics["gradient_norm"], metrics["gradient_norm"], rtol=1e-5
    )


def test_parameters_of_zero_predict_all_tokens_alike(plain):
    state, batch = plain.initializer.create(), make_batch(LONG, 4, 7, seed=0)
    state = state.replace(parameters=jax.tree.map(np.zeros_like, jax.device_get(state.parameters)))
    _, metrics = plain.step(state, [batch])
    assert metrics["sums"].nll / 26 == pytest.approx(np.log(VOCAB_SIZE), rel=1e-6)
    assert metrics["sums"].loss / 26 == pytest.approx(np.log(VOCAB_SIZE), rel=1e-6)


@pytest.mark.first_case
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_repeated_batch_is_learned(dtype):
    config = tiny_config(model__dropout=0.0, model__dtype=dtype, training__label_smoothing=0.0)
    learner = setup(config, optax.adam(optax.constant_schedule(0.02)))
    batch = make_batch(LONG, 4, 7, seed=0)
    _, metrics = learner.after(*[[batch]] * 150)
    assert metrics["sums"].nll / 26 < 0.05
    assert metrics["sums"].correct == 26


@pytest.mark.slow
@in_float32
def test_two_passes_without_dropout_equal_one(plain):
    batch = make_batch(LONG, 4, 7, seed=0)
    state, metrics = setup(tiny_config(model__dropout=0.0, training__r_drop=5.0)).after([batch])
    once, once_metrics = plain.after([batch])
    assert distance(state.parameters, once.parameters) < 1e-6
    assert distance(metrics, once_metrics) < 1e-6


def test_r_drop_is_the_mean_of_both_losses_and_half_the_weighted_divergence():
    """Equations 1 to 3 of Liang et al. 2021, for sums over the targets, per pass."""
    batch, config = (
        make_batch(LONG, 4, 7, seed=0),
        tiny_config(model__dropout=0.3, training__r_drop=5.0),
    )
    learner = setup(config)
    state = learner.initializer.create()
    gradients, _ = learner.step.gradients(state, learner.step.place(batch), 0, learner.step.seed)

    twice = {name: jnp.repeat(array, 2, axis=0) for name, array in batch.items()}
    truth = twice["target_output"][..., None]
    is_counted = twice["target_output"] != PAD
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), 0), 0)

    @jax.jit
    def objective(parameters):
        log_p = jax.nn.log_softmax(
            logits_of(learner.step.graph, parameters, twice, nnx.Rngs(dropout=key))
        )
        nll = -jnp.take_along_axis(log_p, truth, axis=-1)[..., 0]
        losses = jnp.where(is_counted, 0.9 * nll - 0.1 * log_p.mean(-1), 0).sum()
        # of the row's other pass
        log_q = jnp.stack([log_p[1::2], log_p[::2]], axis=1).reshape(log_p.shape)
        divergences = jnp.where(is_counted, (jnp.exp(log_p) * (log_p - log_q)).sum(-1), 0).sum() / 2
        return (losses + 5.0 * divergences) / 2

    assert distance(jax.grad(objective)(state.parameters), gradients) < 1e-5


@pytest.mark.slow
def test_r_drop_makes_passes_agree():
    """With a large weight predictions become independent of dropout."""
    batch = make_batch(LONG, 4, 7, seed=0)

    def spread(r_drop: float) -> float:
        config = tiny_config(model__dropout=0.3, training__r_drop=r_drop)
        learner = setup(config, optax.adam(optax.constant_schedule(0.01)))
        state = learner.after(*[[batch]] * 100)[0]
        graph, placed = learner.step.graph, learner.step.place(batch)
        logits = jax.jit(
            lambda parameters, key: logits_of(graph, parameters, placed, nnx.Rngs(dropout=key))
        )
        one, two = (
            jax.nn.softmax(logits(state.parameters, jax.random.key(seed))) for seed in range(2)
        )
        return float(np.abs(one - two).mean())

    assert spread(20.0) < 0.5 * spread(0.0)


def test_random_numbers_are_a_function_of_seed_step_and_part(dropping):
    batch = make_batch(LONG, 4, 7, seed=0)
    at_zero = dropping.initializer.create()

    def gradients(setup, state, part):
        return jax.device_get(
            setup.step.gradients(state, setup.step.place(batch), part, setup.step.seed)[0]
        )

    first = gradients(dropping, at_zero, 0)
    jax.tree.map(np.testing.assert_array_equal, first, gradients(dropping, at_zero, 0))
    assert distance(first, gradients(dropping, at_zero, 1)) > 0.01
    assert distance(first, gradients(dropping, at_zero.replace(step=at_zero.step + 1), 0)) > 0.01
    assert (
        distance(first, gradients(setup(tiny_config(model__dropout=0.3, seed=1)), at_zero, 0))
        > 0.01
    )


def test_the_same_updates_make_the_same_state(dropping):
    updates = [[make_batch(LONG, 4, 7, seed=seed)] for seed in range(3)]
    first, again = dropping.after(*updates)[0], dropping.after(*updates)[0]
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert first.step == 3


def test_ema_parameters_follow_their_formula(dropping):
    updates = [[make_batch(LONG, 4, 7, seed=seed)] for seed in range(2)]
    start = jax.device_get(dropping.initializer.create().parameters)
    one, two = dropping.after(updates[0])[0], dropping.after(*updates)[0]
    # The decays are those of the warm-up: 1 / 10 and 2 / 11 instead of 0.75.
    by_hand = jax.tree.map(
        lambda p, q, r: 2 / 11 * (0.1 * p + 0.9 * q) + 9 / 11 * r,
        start,
        one.parameters,
        two.parameters,
    )
    assert distance(by_hand, two.ema_parameters) < 1e-6
    assert two.eval_parameters is two.ema_parameters
    assert distance(two.parameters, two.ema_parameters) > 0.01
    late = dropping.step(
        dropping.initializer.create().replace(step=jax.numpy.int32(1000)), updates[0]
    )[0]
    by_hand = jax.tree.map(lambda p, q: 0.75 * p + 0.25 * q, start, late.parameters)
    assert distance(by_hand, late.ema_parameters) < 1e-6


@in_float32
def test_the_gradient_is_clipped_and_its_whole_norm_reported(plain):
    # With an epsilon that dwarfs the gradient, and a rate as large, Adam's first update is the
    # gradient.
    config = tiny_config(model__dropout=0.0, optimizer__epsilon=1e4, optimizer__clip_norm=0.01)
    rate = optax.constant_schedule(1e4)
    clipping = setup(config, make_optimizer(config.optimizer, rate), schedule=rate)
    start, batch = (
        jax.device_get(plain.initializer.create().parameters),
        make_batch(LONG, 4, 7, seed=0),
    )
    (whole, _), (clipped, metrics) = plain.after([batch]), clipping.after([batch])
    gradient, fall = (
        jax.tree.map(np.subtract, start, state.parameters) for state in (whole, clipped)
    )
    norm = float(optax.tree.norm(gradient))
    assert norm > 0.1 and metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert distance(jax.tree.map(lambda x: x * 0.01 / norm, gradient), fall) < 1e-3


@pytest.mark.slow
def test_the_learning_rate_after_a_skipped_update_is_the_one_that_the_optimizer_uses():
    config = tiny_config(model__dropout=0.0)
    schedule = optax.linear_schedule(1.0, 0.0, 4)
    tiny = setup(config, optax.sgd(schedule), schedule=schedule)
    batch, state = make_batch(LONG, 4, 7, seed=0), tiny.initializer.create()
    state, metrics = tiny.step(state, [batch])
    assert metrics["learning_rate"] == 1.0
    parameters = jax.device_get(state.parameters)
    broken = jax.tree.map(lambda x: x * jnp.nan, state.parameters)
    state, metrics = tiny.step(state.replace(parameters=broken), [batch])
    assert metrics["skipped"]
    shardings = jax.tree.map(lambda x: x.sharding, state.parameters)
    state = state.replace(parameters=jax.device_put(parameters, shardings))
    state, metrics = tiny.step(state, [batch])
    assert state.step == 3 and metrics["learning_rate"] == 0.75
    norm = optax.tree.norm(
        jax.tree.map(lambda before, after: before - after, parameters, state.parameters)
    )
    assert float(norm) == pytest.approx(0.75 * float(metrics["gradient_norm"]), rel=1e-4)


def test_parameters_and_optimizer_stay_float32_whatever_the_products_are():
    half = setup(
        tiny_config(model__dtype="bfloat16", training__ema_decay=0.9),
        optax.adam(optax.constant_schedule(0.1)),
    )
    batch = half.step.abstract_batch(Bucket(8, 4, 5))
    state, metrics = jax.eval_shape(
        half.step.update, half.initializer.abstract_state, batch, half.step.seed, np.float32(0.1)
    )
    for leaf in jax.tree.leaves((state, metrics)):
        assert leaf.dtype in (np.float32, np.int32, np.bool_)
    shapes = [
        jax.tree.map(lambda x: (x.shape, x.dtype), tree)
        for tree in (state, half.initializer.abstract_state)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("plan", ["buckets", "packed"])
def test_what_is_compiled_ahead_is_what_the_loader_gives(plan):
    config = tiny_config(batch__plan=plan, data__max_length=16)
    config.batch.update({"tokens": 128, "max_buckets": 2, "row_multiple": 2, "packed_length": 16})
    sentences = random_sentences(30, longest=12)
    shapes = PLANS[plan].choose_shapes(sentences.lengths, config.batch)
    epoch = PLANS[plan].plan_epoch(sentences.lengths, shapes, np.random.default_rng(0))
    step = setup(config).step
    ahead = [
        {name: (array.shape, array.dtype) for name, array in step.abstract_batch(b).items()}
        for b in shapes
    ]
    for number in range(len(epoch)):
        arrays = assemble_batch(sentences, epoch[number])
        assert {name: (array.shape, array.dtype) for name, array in arrays.items()} in ahead


@pytest.mark.first_case
@pytest.mark.parametrize("parts", [1, 3])
def test_what_is_compiled_ahead_is_not_compiled_again(parts, monkeypatch):
    several = setup(tiny_config(training__accumulation=parts))
    state, small = several.initializer.create(), make_batch(SHORT, 4, 3, seed=0)
    batches = [make_batch(LONG, 4, 7, seed=seed) for seed in range(parts)]
    for compile_one in several.step.compilations(
        several.initializer.abstract_state, [Bucket(4, 3, 3), Bucket(4, 7, 7)]
    ):
        compile_one()
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_, **__: pytest.fail("compiled"))
    state, _ = several.step(state, batches)
    state, _ = several.step(state, [small, *batches[1:]])
    with pytest.raises(pytest.fail.Exception, match="compiled"):
        several.step(state, [make_batch(SHORT, 4, 4, seed=0)])


def test_runs_that_differ_in_seed_and_schedule_share_the_program_of_a_step():
    texts = set()
    for seed, rate in ((0, 0.1), (7, 0.2)):
        schedule = optax.constant_schedule(rate)
        config = tiny_config(seed=seed, optimizer__learning_rate=rate)
        here = setup(config, make_optimizer(config.optimizer, schedule), schedule=schedule)
        function, *arguments = here.step.batch_call(
            here.initializer.abstract_state, Bucket(8, 4, 5), is_accumulating=False
        )
        texts.add(function.lower(*arguments).as_text())
    assert len(texts) == 1


@pytest.mark.slow
def test_the_shape_that_needs_most_memory_and_not_the_one_with_most_positions_is_compiled_first():
    # Attention scores are the largest arrays here, and there is one for each pair of positions.
    many_rows, long = Bucket(64, 16, 16), Bucket(8, 96, 96)
    assert many_rows.positions > long.positions
    here = setup(tiny_config())
    programs = [
        compile_one()
        for compile_one in here.step.compilations(
            here.initializer.abstract_state, [many_rows, long]
        )
    ]
    long_needs, many_need = (
        program.memory_analysis().temp_size_in_bytes for program in programs[:2]
    )
    assert long_needs > many_need
    assert programs[0] is here.compiled_update(
        here.initializer.abstract_state, here.step.abstract_batch(long)
    )


@pytest.mark.slow
def test_the_memory_of_an_accumulation_counts_the_whole_state():
    here = setup(tiny_config(training__accumulation=2), optax.adam(optax.constant_schedule(0.1)))
    state = here.initializer.abstract_state
    program = here.step.compilations(state, [Bucket(4, 7, 7)])[0]()
    arguments = jax.tree.leaves((state, jax.eval_shape(here.step.zeros, state.parameters)))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in arguments)
    assert program.memory_analysis().argument_size_in_bytes >= size


VARIANTS = [
    {},
    {
        "attention_bias": True,
        "activation": "swiglu",
        "share_embeddings": "none",
        "positions": "learned",
    },
    {
        "attention_bias": True,
        "attention": "additive",
        "norm_position": "pre",
        "share_embeddings": "target",
    },
]


@pytest.mark.first_case
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_gradients_of_a_bfloat16_model_are_near_those_of_float32(variant):
    rows, width = 32, 16
    lengths = np.random.default_rng(0).integers(width // 2, width - 1, (rows, 2)).tolist()
    batch = make_batch(lengths, rows, width, seed=0)

    def gradients(dtype: str) -> dict[str, np.ndarray]:
        config = tiny_config(model__dropout=0.0)
        config.model.update({"d_model": 64, "d_ff": 128, "max_positions": width})
        config.model.update({"dtype": dtype, **variant})
        here = setup(config)
        return dict(
            flat(
                here.step.gradients(
                    here.initializer.create(), here.step.place(batch), 0, here.step.seed
                )[0]
            )
        )

    expected, actual = gradients("float32"), gradients("bfloat16")
    # Gradients of the keys' biases are zero but for rounding, as softmax cancels them.
    floor = 1e-3 * np.sqrt(sum(np.sum(np.square(array)) for array in expected.values()))
    for path, array in expected.items():
        assert np.linalg.norm(actual[path] - array) < 0.02 * max(np.linalg.norm(array), floor), path
