"""python -m tests.distributed.eight_devices WORKDIR MESHES: makes the same fifty updates on each
mesh and prints JSON.

The run on the last mesh is also saved half-way and resumed on the mesh before it. The models of
these updates have products in float32. The report also has one update in bfloat16, and translations
in both, on each mesh.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import jax

from tests.checkpoints.saved_runs import read_run
from tests.distributed.kinds_of_models import COMBINED, errors
from tests.distributed.on_meshes import (
    LENGTHS,
    Shape,
    averaging_update,
    bfloat16_update,
    ctc_update,
    largest_error,
    mesh_of,
    muon_update,
    r_drop_loss,
    translate,
)
from tests.training.tiny import Setup, distance, make_batch, setup, tiny_config
from transformer.checkpoints.manager import Checkpoints
from transformer.data.batches.collation import place_batch
from transformer.training.optimizer import make_optimizer, make_schedule
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.workdir import Workdir

DTYPES = ("float32", "bfloat16")
STEPS = 50
SAVED = 25
BATCHES = [make_batch(LENGTHS[seed:], 8, 8, seed) for seed in range(4)]


def setup_on(shape: Shape) -> Setup:
    """Returns a setup with every kind of dropout and with R-Drop, on a mesh of this shape.

    On meshes that use every axis, layers are rematerialized, which changes no loss.
    """
    config = tiny_config(
        model__dropout=0.2, model__attention_dropout=0.2, model__activation_dropout=0.2
    )
    config.training.update({"r_drop": 1.0, "module_norms": True})
    config.model.remat = "layers" if min(shape) > 1 else "none"
    config.optimizer.update({"schedule": "constant", "learning_rate": 0.01, "warmup_steps": 0})
    schedule = make_schedule(config.optimizer, config.model.d_model, STEPS)
    return setup(
        config, make_optimizer(config.optimizer, schedule), mesh_of(shape, config), schedule
    )


def updates(here: Setup, state: TrainState, first: int, last: int) -> tuple[TrainState, dict]:
    """Returns the state after the updates from `first` to before `last`, and their losses per token
    and norms.

    The norms by module are those of the first.
    """
    losses, norms, by_module = [], [], {}
    for step in range(first, last):
        state, metrics = here.step(state, [BATCHES[step % len(BATCHES)]])
        sums = jax.device_get(metrics["sums"])
        losses.append(float(sums.loss / sums.tokens))
        norms.append(float(metrics["gradient_norm"]))
        by_module = by_module or {
            name: float(norm) for name, norm in metrics["module_norms"].items()
        }
    return state, {"losses": losses, "gradient_norms": norms, "module_norms": by_module}


def held(tree) -> list[float]:
    """Returns the fraction of the elements of all matrices that each device holds."""
    matrices = [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim == 2]
    total = sum(leaf.size for leaf in matrices)
    count = len(matrices[0].sharding.device_set)
    return [
        sum(leaf.addressable_shards[number].data.size for leaf in matrices) / total
        for number in range(count)
    ]


def memory(here: Setup, state: TrainState) -> dict[str, int]:
    """Returns the bytes per device of the arguments and outputs of the compiled update."""
    analysis = here.compiled_update(state, here.step.place(BATCHES[0])).memory_analysis()
    return {"arguments": analysis.argument_size_in_bytes, "outputs": analysis.output_size_in_bytes}


def resumed(folder: Path, state: TrainState, there: Setup) -> dict:
    """Saves this state, resumes from it on another mesh and reports the rest of the run."""
    config = tiny_config(checkpoint__best_metric="loss")
    with Checkpoints(Workdir(folder), config) as checkpoints:
        checkpoints.save(state, Progress(step=SAVED))
    kept = jax.device_get(state.parameters)
    abstract = there.initializer.abstract_state
    with Checkpoints(Workdir(folder), config) as checkpoints:
        restored, _ = checkpoints.restore(abstract)
    assert jax.tree.map(lambda x: x.sharding, restored) == jax.tree.map(
        lambda x: x.sharding, abstract
    )
    return {
        "restored": distance(kept, jax.device_get(restored.parameters)),
        "loaded_without_a_mesh": distance(kept, read_run(folder)[0]),
        **updates(there, restored, SAVED, STEPS)[1],
    }


def in_bfloat16(shapes: list[Shape]) -> dict:
    """Returns the loss on each mesh, and the error of the gradient, which is exact on the first by
    definition.
    """
    updates = {str(shape): bfloat16_update(shape) for shape in shapes}
    _, expected = updates[str(shapes[0])]
    return {
        shape: {"loss": loss, "gradient_error": largest_error(gradient, expected)}
        for shape, (loss, gradient) in updates.items()
    }


def differences(update: Callable[[Shape], TrainState], shapes: list[Shape]) -> dict[str, float]:
    """Returns the difference that each mesh makes to the parameters after an update, relative to
    the first.
    """
    states = {str(shape): update(shape) for shape in shapes}
    expected = states[str(shapes[0])].parameters
    return {shape: distance(expected, state.parameters) for shape, state in states.items()}


def main(folder: Path, shapes: list[Shape]) -> None:
    setups = {shape: setup_on(shape) for shape in shapes}
    start = jax.device_get(setups[shapes[0]].initializer.create().parameters)
    report = {}
    for shape, here in setups.items():
        state = here.initializer.create()
        report[str(shape)] = {
            "start": distance(start, jax.device_get(state.parameters)),
            "matrices_held": held(state.parameters),
            "moments_held": held(state.optimizer_state),
            "rows_held": place_batch(BATCHES[0], here.step.mesh)["source"]
            .addressable_shards[0]
            .data.shape[0],
            "memory": memory(here, state),
            **updates(here, state, 0, STEPS)[1],
        }
    last = setups[shapes[-1]]
    state, _ = updates(last, last.initializer.create(), 0, SAVED)
    whole = sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.ndim == 2
    )
    vectors = sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.ndim < 2
    )
    batch = sum(array.nbytes for array in BATCHES[0].values())
    sizes = {"matrices": whole, "vectors": vectors, "batch": batch}
    translations = {
        dtype: {str(shape): translate(shape, dtype) for shape in shapes} for dtype in DTYPES
    }
    resumption = resumed(folder, state, setups[shapes[-2]])
    parts = {"bfloat16": in_bfloat16(shapes), "muon": differences(muon_update, shapes)}
    parts["kinds"] = {name: errors(shapes, changes) for name, changes in COMBINED.items()}
    parts["averaging"] = differences(averaging_update, shapes)
    parts["ctc"] = differences(ctc_update, shapes)
    parts["r_drop"] = {str(shape): r_drop_loss(shape) for shape in shapes}
    parts |= {"translations": translations, "resumed": resumption}
    print(json.dumps({"meshes": report, "sizes": sizes, **parts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [tuple(shape) for shape in json.loads(sys.argv[2])])
