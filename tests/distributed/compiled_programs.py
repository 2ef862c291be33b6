"""python -m tests.distributed.compiled_programs MESHES: the train step compiled for each mesh, as
JSON.

Reports the collectives of the step and its temporary memory per device. Nothing is executed.
"""

import json
import math
import re
import sys

import jax
import numpy as np

from tests.training import tiny
from transformer.distributed.mesh import make_mesh

VOCAB_SIZE = 2048  # tables are padded to such numbers of rows
# more positions than the vocabulary has entries, so that activations are larger than weights
ROWS, LENGTH = 64, 32
COLLECTIVE = re.compile(
    r"= (.*?) (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def collectives(program: str) -> list[list[int]]:
    """Returns the shape of each array that a collective of the program produces."""
    results = [match[1] for match in map(COLLECTIVE.search, program.splitlines()) if match]
    shapes = [shape for result in results for shape in re.findall(r"\w+\[([\d,]*)\]", result)]
    return [[int(size) for size in shape.split(",") if size] for shape in shapes]


def inspect(shape: tuple[int, int, int]) -> dict:
    config = tiny.tiny_config()
    config.model.update({"d_model": 64, "d_ff": 256, "num_heads": 4})
    config.mesh.update(dict(zip(("data", "fsdp", "tensor"), shape, strict=True)))
    mesh = make_mesh(config, jax.devices()[: math.prod(shape)])
    here = tiny.setup(config, mesh=mesh, vocab_size=VOCAB_SIZE)
    state, rows = here.initializer.abstract_state, here.step.batch_sharding

    def tokens(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, np.int32, sharding=rows)

    batch = {name: tokens(ROWS, LENGTH) for name in ("source", "target_input", "target_output")}
    step = here.compiled_update(state, batch)
    weights = [leaf.size for leaf in jax.tree.leaves(state.parameters) if leaf.ndim == 2]
    return {
        "largest_weight": max(weights),
        "step": collectives(step.as_text()),
        "temporaries": step.memory_analysis().temp_size_in_bytes,
    }


if __name__ == "__main__":
    print(json.dumps({str(shape): inspect(shape) for shape in map(tuple, json.loads(sys.argv[1]))}))
