"""Batches of sequences of similar length in a few padded shapes, and devices that share them."""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from transformer.config.types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding import ensemble
from transformer.decoding.shortlist import Shortlist
from transformer.model.linear import Linear
from transformer.model.matmul import matmul_dtype
from transformer.model.partitioning import target_platform
from transformer.model.stored_weights import INT8, decoding_table, decoding_weight
from transformer.support.errors import UserError
from transformer.support.processor import computes_int8
from transformer.support.programs import Programs
from transformer.support.special_tokens import PAD
from transformer.support.workers import merge

SHORTEST = 16  # the smallest padded length: shorter ones save little, and each is compiled
ROW_MULTIPLE = 8  # divides the rows of batches with at least 8: TPUs compute on tiles of 8 rows
LAUNCHED_AHEAD = 1  # batches that a device has received while it computes another one

Replicas = dict[jax.Device, tuple[dict, ...]]  # the parameters of each model, on each device


class DecodingBatch(NamedTuple):
    """The sequences at `indices`, each in a row of an array of shape (rows, length)."""

    rows: int
    length: int
    indices: list[int]


def padded_lengths(longest: int, shortest: int = SHORTEST) -> tuple[int, ...]:
    """Returns the padded lengths: powers of two times `shortest`, and last `longest`."""
    lengths = (shortest * 2**i for i in range(longest.bit_length()))
    return (*(length for length in lengths if length < longest), longest)


def make_decoding_batches(
    lengths: Mapping[int, int],
    longest: int,
    max_positions: int,
    shortest: int = SHORTEST,
    positions: Callable[[int], int] = lambda length: length,
) -> list[DecodingBatch]:
    """Returns batches of sequences of similar length, the longest first.

    In this order devices finish at about the same time. The padded length of a sequence and the
    number of rows of its batch depend only on the length of the sequence, so it always meets the
    same program. `lengths`, by the indices of the sequences, are at most `longest`. A row of a
    padded length has `positions(length)` positions, and a batch of several rows has at most
    `max_positions`.
    """
    # The indices by padded length, the shortest first.
    shapes = padded_lengths(longest, shortest)
    groups = {}
    for i in sorted(lengths, key=lambda i: (lengths[i], i)):
        padded = next(shape for shape in shapes if lengths[i] <= shape)
        groups.setdefault(padded, []).append(i)

    # As many rows as the budget of positions allows.
    batches = []
    for length, indices in groups.items():
        rows = max(max_positions // positions(length), 1)
        if rows >= ROW_MULTIPLE:
            rows -= rows % ROW_MULTIPLE
        for begin in range(0, len(indices), rows):
            batches.append(DecodingBatch(rows, length, indices[begin : begin + rows]))
    return batches[::-1]


def pad(
    sequences: Sequence[Sequence[int]], rows: int, length: int
) -> Int[np.ndarray, "rows length"]:
    """Returns the sequences as rows, padded with PAD. The remaining rows are all PAD."""
    padded = np.full((rows, length), PAD, np.int32)
    for row, sequence in zip(padded, sequences, strict=False):
        row[: len(sequence)] = sequence
    return padded


@dataclass(eq=False)
class DeviceModels:
    """One or more models that share a tokenizer, and the local devices that share the batches.

    Parameters are arguments of the methods, so that validation compiles once and decodes with other
    parameters each time. Without a shortlist, the search considers the whole vocabulary.
    """

    graphs: Sequence[nnx.GraphDef]
    tokenizer: Tokenizer
    decoding_config: Config
    devices: Sequence[jax.Device]
    shortlist: Shortlist | None = None

    def __post_init__(self) -> None:
        self.programs = Programs()
        self._jitted = {}
        self.is_int8 = self.decoding_config.dtype == "int8"
        if self.is_int8 and not (target_platform() == "cpu" and computes_int8()):
            raise UserError(
                "decoding.dtype=int8: this machine has no fast 8-bit matmuls; "
                "set decoding.dtype=auto"
            )

    def place(self, parameters: Sequence[dict], mesh: Mesh | None = None) -> Replicas:
        """Returns the parameters of each model on all devices, converted by `convert_weights`.

        `parameters` are pure dicts, in NumPy or sharded over `mesh`. With several processes this is
        a collective.
        """
        # NumPy converts its own arrays, which compiles nothing.
        is_sharded = isinstance(jax.tree.leaves(parameters)[0], jax.Array)
        convert = _convert_on_devices if is_sharded else convert_weights
        mesh = mesh or Mesh(np.array(self.devices), ("device",))
        converted = self._convert(convert, parameters)
        replicated = jax.device_put(converted, NamedSharding(mesh, PartitionSpec()))

        # Each device of the mesh has a whole copy, which its programs take without a transfer.
        arrays, structure = jax.tree.flatten(replicated)
        shards = [
            {shard.device: shard.data for shard in array.addressable_shards} for array in arrays
        ]
        return {
            device: jax.tree.unflatten(structure, [copies[device] for copies in shards])
            for device in self.devices
        }

    def abstract(self, parameters: Sequence[dict]) -> tuple[dict, ...]:
        """Returns the shapes and dtypes of the parameters on a device; arrays may be abstract."""
        return self._convert(_convert_on_devices.eval_shape, parameters)

    def _convert(self, convert: Callable, parameters: Sequence[dict]) -> tuple[dict, ...]:
        models = zip(self.graphs, parameters, strict=True)
        return tuple(convert(self.is_int8, graph, tree) for graph, tree in models)

    def jit(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Returns a jitted function of (parameters, *arrays).

        It calls function(models, *arrays, **options).
        """
        # Copies of this object share the programs of a method: see `TextDecoder.with_tag`.
        key = (getattr(function, "__func__", function), *options.items())
        if key not in self._jitted:

            def apply(parameters, *arrays):
                return function(ensemble.build_models(self.graphs, parameters), *arrays, **options)

            apply.__name__ = function.__name__  # names the program in profiles
            self._jitted[key] = jax.jit(apply)
        return self._jitted[key]

    def run_batches(
        self,
        function: Callable[..., Any],
        parameters: Replicas,
        batches: Sequence[Any],
        arrays_of: Callable[[Any], Sequence[np.ndarray]],
    ) -> Generator[tuple[Any, Any], None, None]:
        """Yields each batch with the result of a function from `jit`, in NumPy.

        The results come in the order in which devices finish. A device takes the next batch as soon
        as it has room, and compiles the function at the first batch of a shape. A single batch goes
        to the first device. `arrays_of` returns the arrays of a batch, just before they are needed.
        """
        waiting = iter(batches)  # shared by the threads of the devices

        def results(device):
            replica = parameters[device]
            launched = deque()
            for batch in waiting:
                # Dispatch is asynchronous: the device gets this batch while it computes the last.
                arrays = jax.device_put(tuple(arrays_of(batch)), device)
                program = self.programs.compile(function, replica, *arrays, device=device)
                launched.append((batch, program(replica, *arrays)))
                if len(launched) > LAUNCHED_AHEAD:
                    first, result = launched.popleft()
                    yield first, jax.device_get(result)
            for batch, result in launched:
                yield batch, jax.device_get(result)

        return merge([results(device) for device in self.devices[: len(batches)]])


def convert_weights(is_int8: bool, graph: nnx.GraphDef, parameters: dict) -> dict:
    """Returns a model's parameters with the weights of matmuls in the dtype of decoding.

    This includes the table of tied embeddings.
    """
    model = nnx.merge(graph, nnx.State(parameters))
    with np.errstate(invalid="ignore"):  # a diverged model may have NaN
        for _, module in nnx.iter_modules(model):
            if isinstance(module, Linear):
                dtype = INT8 if is_int8 else matmul_dtype(module.dtype)
                module.kernel = nnx.Param(decoding_weight(module.kernel[...], dtype))
        if model.projection is None:
            embedding = model.output_embedding
            dtype = INT8 if is_int8 else matmul_dtype(embedding.dtype)
            embedding.table = nnx.Param(decoding_table(embedding.table[...], dtype))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


_convert_on_devices = jax.jit(convert_weights, static_argnums=(0, 1))
