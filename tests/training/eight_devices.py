"""python -m tests.training.four_devices WORKDIR MESHES: prints how updates on these meshes differ from one device's."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from tests.training.tiny import distance, make_batch, setup, tiny_config
from transformer.training.checkpoint import Checkpoints, load_parameters
from transformer.training.progress import Progress
from transformer.workdir import Workdir

BATCH = make_batch([(5, 6), (6, 4), (3, 6), (6, 6), (1, 2), (4, 4)], 8, 8, seed=0)


def optimizer() -> optax.GradientTransformation:
    """Keeps a moment as large as its matrix, yet its first update is the gradient: errors in that are not blown up."""
    return optax.sgd(0.1, momentum=0.9)


def mesh_of(shape: tuple[int, int, int], devices: list) -> Mesh:
    return Mesh(np.reshape(devices, shape), ("data", "fsdp", "tensor"))


def held(tree) -> list[float]:
    """The share of all matrices of a tree that each device holds."""
    matrices = [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim == 2]
    total = sum(leaf.size for leaf in matrices)
    return [
        sum(leaf.addressable_shards[number].data.size for leaf in matrices) / total
        for number in range(jax.device_count())
    ]


def main(folder: Path, shapes: list[tuple[int, int, int]]) -> None:
    config = tiny_config(model__dropout=0.2, model__attention_dropout=0.2, model__activation_dropout=0.2)
    one = setup(config, optimizer(), mesh_of((1, 1, 1), jax.devices()[:1]))
    start = jax.device_get(one.initializer())
    # Two updates: the second's dropout and gradient depend on what the first made.
    expected, expected_metrics = one.after([BATCH], [BATCH])
    report, setups = {"meshes": {}}, {}
    for shape in shapes:
        here = setups[shape] = setup(config, optimizer(), mesh_of(shape, jax.devices()))
        state = here.initializer()
        found, metrics = here.after([BATCH], [BATCH])
        report["meshes"][str(shape)] = {
            "start": distance(start.parameters, jax.device_get(state.parameters)),
            "parameters": distance(expected.parameters, found.parameters),
            "optimizer": distance(expected.optimizer_state, found.optimizer_state),
            "metrics": distance(expected_metrics, metrics),
            "matrices_held": held(state.parameters),
            "moments_held": held(state.optimizer_state),
            "rows_held": here.step.place(BATCH)["source"].addressable_shards[0].data.shape[0],
        }
    state, workdir = setups[shapes[-1]].initializer(), Workdir(folder)
    config.checkpoint.best_metric = "loss"
    with Checkpoints(workdir, config.checkpoint) as checkpoints:
        checkpoints.save(state, Progress(step=1))
    abstract = setups[shapes[0]].initializer.abstract_state
    with Checkpoints(workdir, config.checkpoint) as checkpoints:
        restored, _ = checkpoints.restore(abstract)
    assert jax.tree.map(lambda x: x.sharding, restored) == jax.tree.map(lambda x: x.sharding, abstract)
    saved = jax.device_get(state.parameters)
    report["restored_on_another_mesh"] = distance(saved, jax.device_get(restored.parameters))
    report["loaded_without_a_mesh"] = distance(saved, load_parameters(folder, "last", 1)[0])
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [tuple(shape) for shape in json.loads(sys.argv[2])])
