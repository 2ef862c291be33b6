"""python -m tests.distributed.kinds_of_models MESH KINDS: what a mesh changes in the gradient of
each kind of model.

KINDS is a list of {key: value}. Prints {kind: {"loss": relative difference from one device,
"gradient": largest relative error of a parameter's gradient}} as JSON. A kind goes to stderr first,
where the compiler's warnings about its programs follow.
"""

import json
import sys
from collections.abc import Sequence

import jax
import ml_collections
import numpy as np

from tests.distributed.on_meshes import LENGTHS, Shape, largest_error, mesh_of
from tests.model.models import flat
from tests.training.tiny import VOCAB_SIZE, make_batch, setup, tiny_config
from transformer.support.special_tokens import PAD
from transformer.training.state import TrainState

ROWS, WIDTH = 8, 8
# Sizes that differ from each other and from those of the batch: the partitioner may err at some of
# them only. The other values are those of configs/multi30k.py.
MODEL = {
    "model.d_model": 16,
    "model.d_ff": 48,
    "model.positions": "rotary",
    "model.norm_position": "pre",
}
DROPOUTS = {
    "model.dropout": 0.2,
    "model.attention_dropout": 0.2,
    "model.activation_dropout": 0.2,
    "model.final_dropout": 0.2,
}
# Kinds of the fast tests: values of several keys in one model, which take seconds to compile.
COMBINED = {
    "average attention": {
        "model.decoder_self_attention": "average",
        "model.norm": "rms_norm",
        "model.activation": "swiglu",
    },
    "shared keys": {
        "model.num_key_heads": 1,
        "model.positions": "t5",
        "model.norm_position": "sandwich",
        "training.guided_heads": "1.2,1.1",
        "training.label_smoothing_support": "others",
    },
    "candidates": {
        "training.candidate_loss": "minimum_risk",
        "training.risk_sharpness": 0.1,
        "training.likelihood_weight": 0.01,
        "model.share_embeddings": "target",
    },
}


def batch_for(config: ml_collections.ConfigDict) -> dict[str, np.ndarray]:
    """Returns a batch with the arrays that the loader of such a run makes."""
    batch = make_batch(LENGTHS, ROWS, WIDTH, seed=0)
    if config.batch.plan == "packed":
        batch = pack(batch, make_batch(LENGTHS[::-1], ROWS, WIDTH, seed=1))
    is_target = batch["target_output"] != PAD
    if config.training.candidate_loss != "none":
        other = make_batch(LENGTHS[::-1], ROWS, WIDTH, seed=1)
        # Two candidates of each source are consecutive rows. Only the source of the first counts.
        pairs = {name: np.stack([batch[name], other[name]], axis=1) for name in batch}
        batch = {name: array.reshape(-1, WIDTH) for name, array in pairs.items()}
        rewards = np.random.default_rng(1).random((ROWS, 2))
        return batch | {"rewards": rewards.astype(np.float32)}
    if config.training.guided_heads:
        links = np.random.default_rng(1).random((ROWS, WIDTH, WIDTH)) < 0.3
        batch["links"] = links & is_target[:, :, None] & (batch["source"] != PAD)[:, None]
    if config.data.mixture:
        batch["target_weights"] = np.linspace(0.5, 2.0, ROWS, dtype=np.float32)[:, None] * is_target
    absent = [side for side in ("source", "target") if not config.data[f"{side}_language"]]
    return {name: array for name, array in batch.items() if not name.startswith(tuple(absent))}


def pack(batch: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a batch whose rows have the sentences of both."""
    packed = {name: np.concatenate([batch[name], others[name]], axis=1) for name in batch}
    numbers = np.repeat(np.array([[1, 2]], np.int32), WIDTH, axis=1)
    for side, tokens in (("source", packed["source"]), ("target", packed["target_output"])):
        packed[f"{side}_segments"] = np.where(tokens == PAD, 0, numbers)
        packed[f"{side}_positions"] = np.tile(np.arange(WIDTH, dtype=np.int32), (ROWS, 2))
    return packed


def gradient(shape: Shape, changes: dict) -> tuple[float, dict[str, np.ndarray]]:
    """Returns the loss of a batch, and its gradient by path, at parameters that do not depend on
    the mesh.
    """
    config = tiny_config(
        **{key.replace(".", "__"): value for key, value in (MODEL | DROPOUTS | changes).items()}
    )
    here = setup(config, mesh=mesh_of(shape, config), pieces=["▁a"] * VOCAB_SIZE)
    random = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        # No bias is zero and no scale of a norm is one.
        return jax.device_put(
            0.3 * random.normal(size=leaf.shape).astype(leaf.dtype), leaf.sharding
        )

    state = TrainState(
        0, 0, jax.tree.map(draw, here.initializer.abstract_state.parameters), (), None
    )
    gradients, sums = here.step.gradients(
        state, here.step.place(batch_for(config)), 0, here.step.seed
    )
    return float(sums.loss), dict(flat(jax.device_get(gradients)))


def errors(shapes: Sequence[Shape], changes: dict) -> dict[str, dict[str, float]]:
    """Returns the relative errors of loss and gradient on each mesh, if the first is right."""
    found = {str(shape): gradient(shape, changes) for shape in shapes}
    expected_loss, expected = found[str(shapes[0])]
    return {
        shape: {
            "loss": abs(loss / expected_loss - 1),
            "gradient": largest_error(gradients, expected),
        }
        for shape, (loss, gradients) in found.items()
    }


def main(shape: Shape, kinds: list[dict]) -> None:
    report = {}
    for changes in kinds:
        name = json.dumps(changes)
        print(name, file=sys.stderr, flush=True)
        report[name] = errors([(1, 1, 1), shape], changes)[str(shape)]
    print(json.dumps(report))


if __name__ == "__main__":
    main(tuple(json.loads(sys.argv[1])), json.loads(sys.argv[2]))
