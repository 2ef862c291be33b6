"""An estimate of the memory of a batch, good enough to find the shape that needs most."""

from collections.abc import Sequence

from transformer.config_types import Config
from transformer.data.batches.epoch_plan import Bucket
from transformer.model.attention import head_widths
from transformer.model.products import product_dtype
from transformer.training.objectives import OBJECTIVES


def activation_bytes(config: Config, bucket: Bucket) -> int:
    """Estimates the bytes of the arrays that a batch of this shape creates in the model, gradients included.

    Attention scores are float32 and have a gradient of the same size. They, and not the number of positions, decide
    which shape is largest. Logits do not count, since only a chunk's exist.
    """
    model, stack_lengths = config.model, OBJECTIVES[config.training.objective].stack_lengths
    source_length, target_length = stack_lengths(model, bucket.source_length, bucket.target_length)
    decoder_layers = model.num_layers if model.num_decoder_layers is None else model.num_decoder_layers
    pairs = model.num_layers * source_length**2 + decoder_layers * target_length * (target_length + source_length)
    d_k, d_v = head_widths(model)
    score_size = d_k if model.attention == "additive" else 1  # tanh(q + k) for each pair
    scores = 2 * pairs * model.num_heads * score_size
    # Per position and layer: about six vectors of the residual stream, queries and keys, values and the heads' outputs,
    # and three vectors of the inner layer.
    positions = model.num_layers * source_length + decoder_layers * target_length
    activations = positions * (6 * model.d_model + 2 * model.num_heads * (d_k + d_v) + 3 * model.d_ff)
    return bucket.rows * (4 * scores + product_dtype(model.dtype).itemsize * activations)


def by_memory(config: Config, buckets: Sequence[Bucket]) -> list[Bucket]:
    """Returns the shapes, the one that needs most memory first."""
    return sorted(buckets, key=lambda bucket: activation_bytes(config, bucket), reverse=True)
