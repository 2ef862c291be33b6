"""The tree of a beam search: every hypothesis that the search considered for one sentence, and what became of it."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer.config_types import Config
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding import ensemble
from transformer.decoding.batches import make_batches, pad
from transformer.decoding.beam_search import BeamSearch, State, initial_state, penalty
from transformer.decoding.replicas import Replicas
from transformer.decoding.shortlist import Shortlist
from transformer.decoding.translator import encode_source
from transformer.special_tokens import BOS, EOS

KEPT, DROPPED, ENDED = "kept", "dropped", "ended"


@dataclass(frozen=True)
class Node:
    """A hypothesis: that of its parent, extended by one token.

    Attributes:
      parent: index of the node that it extends; None for the root, which is BOS.
      piece: its last token.
      log_probability: of all its tokens, in nats.
      score: log_probability / length penalty, by which ended hypotheses are compared.
      fate: `KEPT` if the search kept it and extended it, `ENDED` if it is complete, else `DROPPED`.
    """

    parent: int | None
    piece: str
    log_probability: float
    score: float
    fate: str


@dataclass(frozen=True)
class BeamTree:
    """The hypotheses of a search. A node follows its parent, and nodes of one depth are together, best first.

    Attributes:
      source_pieces: the source, EOS included.
      nodes: the root, and for each step the hypotheses that end, the K best extensions, and the K next best, which are
        dropped at once.
      best: the indices of the nodes on the way to the translation, from the root.
    """

    source_pieces: tuple[str, ...]
    nodes: tuple[Node, ...]
    best: tuple[int, ...]


class Step(NamedTuple):
    """The hypotheses that a step considers: those that end, and 2 K extensions, of which it keeps the first K."""

    is_taken: Bool[Array, "L"]
    ends: Bool[Array, "L K"]
    end_log_p: Float[Array, "L K"]
    parents: Int[Array, "L 2K"]
    tokens: Int[Array, "L 2K"]
    log_p: Float[Array, "L 2K"]


class BeamTracer:
    """Records the beam searches of a model, or of an ensemble."""

    def __init__(
        self,
        graphs: Sequence[nnx.GraphDef],
        tokenizer: Tokenizer,
        config: Config,
        device: jax.Device,
        shortlist: Shortlist | None = None,
    ):
        """`config` is the group `config.decoding`."""
        self.graphs, self.tokenizer, self.config, self.device = tuple(graphs), tokenizer, config, device
        self.shortlist = shortlist
        self.record = jax.jit(self._record)

    def trace(self, replicas: Replicas, text: str) -> BeamTree:
        """Searches for the translation of a text. A long text is cut, with a warning, as for a translation."""
        longest = self.config.max_source_length
        source = encode_source(self.tokenizer.source, "text", text, longest) or [EOS]
        (batch,) = make_batches({0: len(source)}, longest, 0, 1)
        limit = np.array([len(source) - 1 + self.config.max_extra_length], np.int32)
        row = pad([source], 1, batch.length)
        candidates = None if self.shortlist is None else self.shortlist.candidates(row)
        steps = jax.device_get(self.record(replicas.on(self.device), row, limit, candidates))
        nodes = self._make_nodes(steps)
        best = [max((i for i, node in enumerate(nodes) if node.fate == ENDED), key=lambda i: nodes[i].score)]
        while (parent := nodes[best[0]].parent) is not None:
            best.insert(0, parent)
        return BeamTree(tuple(self.tokenizer.source.pieces[token] for token in source), tuple(nodes), tuple(best))

    def _record(
        self,
        parameters: tuple[dict, ...],
        source: Int[Array, "1 S"],
        limits: Int[Array, "1"],
        candidates: Int[Array, "1 C"] | None,
    ) -> Step:
        config, models = self.config, ensemble.build_models(self.graphs, parameters, candidates)
        max_length = source.shape[1] + config.max_extra_length
        search = BeamSearch(
            models, limits, config.beam_size, 1, config.length_penalty, max_length, forbid_unk=config.forbid_unk
        )

        def step(state: State, _) -> tuple[State, Step]:
            is_taken, found = search.is_unfinished(state), search.extend(state)
            log_p, parents, tokens, _ = search.best_extensions(state.live_log_p, found.prediction, 2 * config.beam_size)
            log_p = jnp.where(state.position < limits[0], log_p, -jnp.inf)
            considered = Step(is_taken, found.ends[0], found.end_log_p[0], parents[0], tokens[0], log_p[0])
            return jax.lax.cond(is_taken, lambda: search.advance(state, found), lambda: state), considered

        start = initial_state(models, source, limits, config.beam_size, max_length)
        return jax.lax.scan(step, start, length=max_length)[1]

    def _make_nodes(self, steps: Step) -> list[Node]:
        pieces, beam_size, alpha = self.tokenizer.target.pieces, self.config.beam_size, self.config.length_penalty
        nodes, live = [Node(None, pieces[BOS], 0.0, 0.0, KEPT)], [0] * beam_size
        for length, step in enumerate(zip(*(array.tolist() for array in steps), strict=True), start=1):
            is_taken, ends, end_log_p, parents, tokens, log_p = step
            if not is_taken:
                break
            ended = [
                (live[slot], EOS, value, ENDED)
                for slot, value in enumerate(end_log_p)
                if ends[slot] and math.isfinite(value)
            ]
            fates = [KEPT] * beam_size + [DROPPED] * beam_size
            extended = [
                (live[parent], token, value, fate)
                for parent, token, value, fate in zip(parents, tokens, log_p, fates, strict=True)
                if math.isfinite(value)
            ]
            first = len(nodes) + len(ended)
            for parent, token, value, fate in ended + extended:
                nodes.append(Node(parent, pieces[token], value, value / penalty(length, alpha), fate))
            live = [first + slot for slot in range(beam_size)]
        parents_of_kept = {node.parent for node in nodes if node.fate != DROPPED}
        return [
            node if i in parents_of_kept or node.fate == ENDED else dataclasses.replace(node, fate=DROPPED)
            for i, node in enumerate(nodes)
        ]
