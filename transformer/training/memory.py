"""The memory of a program, and the batch shape that needs most of it."""

from collections.abc import Sequence
from typing import Any

from transformer.config.types import Config, head_widths
from transformer.data.batches.epoch_plan import Bucket
from transformer.training.objectives import OBJECTIVES


def sort_by_memory(config: Config, buckets: Sequence[Bucket]) -> list[Bucket]:
    """Returns the shapes in order of the memory that they need, the largest first.

    The order follows an estimate of the elements of a layer's arrays.
    """
    model_config = config.model
    objective = OBJECTIVES[config.training.objective]

    def elements(bucket):
        source, target = objective.stack_lengths(
            model_config, bucket.source_length, bucket.target_length
        )
        # Plain attention keeps its scores, with a gradient of the same size. Logits exist only for
        # a chunk of rows.
        scores = 2 * model_config.num_heads * (source**2 + target**2 + source * target)
        # About six vectors of the residual stream, queries, keys, values and heads, and three
        # vectors of the inner layer.
        heads = 2 * model_config.num_heads * sum(head_widths(model_config))
        vectors = 6 * model_config.d_model + heads + 3 * model_config.d_ff
        return bucket.rows * (scores + (source + target) * vectors)

    return sorted(buckets, key=elements, reverse=True)


def bytes_used(memory: Any) -> int:
    """Returns the bytes on a device while a program with this `memory_analysis()` runs."""
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return used - memory.alias_size_in_bytes  # donated arguments share the memory of outputs
