"""The sizes of activations, from which Firefox's engine takes the factors of its 8 bits."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from scripts.interop import marian_architecture
from scripts.interop.marian_binary import INT8_MAX
from scripts.interop.portable import PortableModel, Settings
from scripts.interop.runtimes import Unavailable
from scripts.interop.sentences import Sentences, usable
from transformer.checkpoints.restore import named_leaves
from transformer.config.keys import validated_config
from transformer.data.sources.source import read_pairs
from transformer.decoding.batches import pad
from transformer.decoding.forced_decoding import shift_right
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import Translation
from transformer.model.linear import Linear
from transformer.support.errors import UserError
from transformer.support.special_tokens import PAD
from transformer.training.state import abstract_init

# A factor is 127 / (mean + 1.1 standard deviations) of the largest activations of a matmul's calls.
# Mozilla's pipeline takes them from greedy decoding in batches of 32.
DEVIATIONS = 1.1
ROWS = 32
MOST = 1000  # sentences
# The search of Firefox's engine.
GREEDY = {
    "model.dtype": "float32",
    "decoding.dtype": "auto",
    "decoding.strategy": "beam",
    "decoding.beam_size": 1,
    "decoding.forbid_unk": True,
    "decoding.max_length_factor": 2.0,
    "decoding.max_extra_length": 2,
}
OUTPUT = "output"  # the name of the matmul of the logits, which may have no linear map
# The engine's name of the output table when a shortlist selects rows of it.
SELECTED = "none"


class MeasuredLinear(Linear):
    """A linear map that also returns the largest input of each position to `nnx.capture`."""

    def __call__(self, x: Float[Array, "*rows K"]) -> Float[Array, "*rows N"]:
        self.sow(nnx.Intermediate, "largest", abs(x).max(axis=-1))
        return super().__call__(x)


class GreedyModel:
    """A model with greedy search in float32, as Firefox's engine searches.

    With `model.shortlist` the search considers its candidates only. The texts already begin with
    the tag.
    """

    def __init__(self, model: PortableModel):
        self.config = validated_config(model.config | GREEDY)
        tokenizer = model.tokenizer.with_tag("")
        self.graph, shapes = abstract_init(self.config, *tokenizer.vocab_sizes)
        # A portable model may have its parameters in any order.
        leaves = [model.parameters[name] for name in named_leaves(shapes)]
        self.parameters = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
        self.decoder = TextDecoder(
            (self.graph,), tokenizer, self.config.decoding, jax.local_devices(), model.shortlist
        )

    def translate(self, texts: Sequence[str]) -> list[Translation]:
        """Returns the best translation of each text."""
        placed = self.decoder.place((self.parameters,))
        return [best for (best,) in self.decoder.translate(placed, texts)]

    def largest_inputs(
        self, parameters: dict, source: Int[Array, "B S"], target: Int[Array, "B T"]
    ) -> dict[str, Float[Array, "B _"]]:
        """Returns the largest input of each linear map, by position, for forced targets."""
        network = nnx.merge(self.graph, nnx.State(parameters))
        for _, module in nnx.iter_modules(network):
            if isinstance(module, Linear):
                module.__class__ = MeasuredLinear
        hidden, captured = nnx.capture(network.hidden, nnx.Intermediate)(
            source, shift_right(target)
        )
        sizes = {OUTPUT: abs(hidden).max(axis=-1)}
        for path, values in nnx.to_flat_state(captured):
            *module, kind = map(str, path)
            if kind == "largest":
                sizes[".".join(module)] = values.get_value()[0]
        return sizes


def measure(
    model: PortableModel, config: Settings, sentences: Sentences | None
) -> dict[str, float]:
    """Returns the factors of activations, by Marian's name of the matrix that multiplies them.

    The model translates the `sentences`, or the validation split, and reads its translations.
    `config` is the result of `marian.architecture_of`. Raises UserError if there are no sentences.
    """
    model = model._replace(shortlist=None)
    greedy = GreedyModel(model)
    try:
        sentences = sentences or Sentences(
            "the validation split", *read_pairs(greedy.config.data, "valid")
        )
        texts = usable(sentences, model, greedy.config).texts[:MOST]
    except (UserError, Unavailable) as reason:
        raise UserError(
            "--sentences=FILE: is missing; activations are measured on sentences of the source "
            f"language, if not on the validation split ({reason})"
        ) from reason
    logging.info("Measuring activations on %d sentences of %s.", len(texts), sentences.origin)

    sources = greedy.decoder.source_tokens(texts)
    targets = [translation.tokens for translation in greedy.translate(texts)]
    calls = defaultdict(list)
    largest_inputs = jax.jit(greedy.largest_inputs)
    for source, target in _batches(sources, targets):
        for name, sizes in largest_inputs(greedy.parameters, source, target).items():
            calls[name].extend(_largest_of_calls(name, np.asarray(sizes), source, target))
    factors = {name: INT8_MAX / (_bound(values) or INT8_MAX) for name, values in calls.items()}
    return _by_marian_names(factors, config)


def _batches(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> Iterator[tuple[Int[np.ndarray, "B S"], Int[np.ndarray, "B T"]]]:
    """Yields batches of sources of similar length, with lengths that are multiples of 16."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for begin in range(0, len(order), ROWS):
        rows = []
        for side in (sources, targets):
            sequences = [side[i] for i in order[begin : begin + ROWS]]
            length = max(map(len, sequences))
            rows.append(pad(sequences, ROWS, length + -length % 16))
        yield tuple(rows)


def _largest_of_calls(
    name: str,
    sizes: Float[np.ndarray, "B L"],
    source: Int[np.ndarray, "B S"],
    target: Int[np.ndarray, "B T"],
) -> Float[np.ndarray, " N"]:
    """Returns the largest input of each call: one call of the encoder, one for each target token.

    The keys and values of cross-attention are computed from the source in one call.
    """
    is_of_source = name.startswith("encoder.") or name.endswith(
        ("cross_attention.key", "cross_attention.value")
    )
    tokens: Bool[np.ndarray, "B L"] = (source if is_of_source else target) != PAD
    largest = np.where(tokens, sizes, 0.0)
    if is_of_source:
        return largest.max(keepdims=True).ravel()
    return largest.max(axis=0)[tokens.any(axis=0)]


def _bound(values: Sequence[float]) -> float:
    return float(np.mean(values) + DEVIATIONS * np.std(values))


def _by_marian_names(factors: Mapping[str, float], config: Settings) -> dict[str, float]:
    """Returns the factors of linear maps by Marian's names of their matrices."""
    names = marian_architecture.parameter_names(config)
    named = {names[f"{name}.kernel"]: factors[name] for name in factors if name != OUTPUT}
    table = names["decoder.embedding.table"]
    return named | {table: factors[OUTPUT], SELECTED: factors[OUTPUT]}
