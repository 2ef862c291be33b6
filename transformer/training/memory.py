"""The memory of a program, and which batch shape needs most of it."""

from collections.abc import Sequence
from typing import Any

from transformer.config.types import Config, head_widths
from transformer.data.batches.epoch_plan import Bucket
from transformer.training.objectives import OBJECTIVES


def by_memory(config: Config, buckets: Sequence[Bucket]) -> list[Bucket]:
    """Returns the shapes, the one that needs most memory first, by an estimate of the elements of a
    layer's arrays.
    """
    model, objective = config.model, OBJECTIVES[config.training.objective]

    def elements(bucket: Bucket) -> int:
        source, target = objective.stack_lengths(model, bucket.source_length, bucket.target_length)
        # Plain attention keeps its scores, with a gradient of the same size. Logits exist for a
        # chunk of rows only.
        scores = 2 * model.num_heads * (source * source + target * target + source * target)
        # About six vectors of the residual stream, queries, keys, values and heads, and three of
        # the inner layer.
        vectors = 6 * model.d_model + 2 * model.num_heads * sum(head_widths(model)) + 3 * model.d_ff
        return bucket.rows * (scores + (source + target) * vectors)

    return sorted(buckets, key=elements, reverse=True)


def bytes_used(memory: Any) -> int:
    """Returns the bytes on a device while a program with this `memory_analysis()` runs."""
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return used - memory.alias_size_in_bytes  # donated arguments share the memory of outputs
