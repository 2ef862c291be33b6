"""The hypotheses that a beam search considers for one sentence: all of them as a tree, or those
after a prefix.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config
from transformer.decoding.batches import Replicas, make_batches
from transformer.decoding.beam_search import BeamSearch, Models, Sentences, length_penalty
from transformer.decoding.control.control import Control
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import EMPTY, Translation, pieces_of
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS

KEPT, DROPPED, ENDED = "kept", "dropped", "ended"


@dataclass(frozen=True)
class Node:
    """A hypothesis: its parent extended by one token, `piece`.

    parent: index of the node that it extends; None for the root, which is BOS.
    log_probability: of all its tokens, in nats. score: log_probability / length penalty.
    outcome: `KEPT` if the search kept it and extended it, `ENDED` if it is complete, else
        `DROPPED`.
    """

    parent: int | None
    piece: str
    log_probability: float
    score: float
    outcome: str


@dataclass(frozen=True)
class BeamTree:
    """The hypotheses of a search. A node follows its parent, and nodes of one depth are together,
    best first.

    source_pieces: the source, EOS included.
    nodes: the root, and for each step the hypotheses that end, the K best extensions, and the K
      next best, which are dropped at once.
    best: the indices of the nodes on the way to the translation, from the root.
    """

    source_pieces: tuple[str, ...]
    nodes: tuple[Node, ...]
    best: tuple[int, ...]


class Step(NamedTuple):
    """The hypotheses of a step: the K live ones with EOS, and 2 K extensions, of which the search
    keeps the first K.

    exists: whether the search considers it.
    """

    exists: Bool[Array, "L 3K"]
    parents: Int[Array, "L 3K"]
    tokens: Int[Array, "L 3K"]
    log_p: Float[Array, "L 3K"]


def trace(decoder: TextDecoder, parameters: Replicas, text: str) -> BeamTree:
    """Returns the beam search for the translation of a text."""
    (source,) = decoder.source_tokens([text], first_line=1)
    source = source or [EOS]
    steps = _search_steps(decoder, parameters, source, decoder.arrays_of([source], first_line=1))
    nodes = _make_nodes(steps, decoder.tokenizer.target.pieces, decoder.config)
    best = [
        max(
            (i for i, node in enumerate(nodes) if node.outcome == ENDED),
            key=lambda i: nodes[i].score,
        )
    ]
    while (parent := nodes[best[0]].parent) is not None:
        best.insert(0, parent)
    return BeamTree(pieces_of(decoder.tokenizer.source, source), tuple(nodes), tuple(best))


def alternatives(
    decoder: ControlledDecoder, parameters: Replicas, text: str, prefix: str, count: int
) -> list[Translation]:
    """Returns a translation for each of the `count` likeliest tokens after the prefix, the
    likeliest token first.

    Raises UserError if the beam search does not consider so many tokens, or no output has the
    prefix.
    """
    if count > (most := 2 * decoder.config.beam_size):
        raise UserError(
            f"count={count}: must be at most {most}, twice decoding.beam_size; raise that"
        )
    (source,) = decoder.source_tokens([text], first_line=1)
    if not source:
        return [EMPTY]
    tokens = decoder.control.encode_text("prefix", prefix)
    arrays_of = decoder.arrays_of([source], 1, [Control(tokens)])
    steps = _search_steps(decoder, parameters, source, arrays_of)
    _, _, following, log_p = (array[len(tokens)].tolist() for array in steps)
    likeliest = sorted(zip(log_p, following, strict=True), key=lambda pair: -pair[0])[:count]
    controls = [Control([*tokens, token]) for value, token in likeliest if math.isfinite(value)]
    return [
        best for (best,) in decoder.translate(parameters, [text] * len(controls), controls=controls)
    ]


def _search_steps(
    decoder: TextDecoder, parameters: Replicas, source: Sequence[int], arrays_of: Callable
) -> Step:
    """Returns the steps of the search for the translation of a source."""
    (batch,) = make_batches({0: len(source)}, decoder.config.max_source_length, 1)
    search = decoder.jit(decoder.search, method=record, n_best=1, extra_length=None)
    ((_, steps),) = decoder.map(search, parameters, [batch], arrays_of)
    return steps


def record(models: Models, sentences: Sentences, config: Config, n_best: int) -> Step:
    """Returns the steps of the search for the one sentence, as many as the longest output has
    tokens.
    """
    search = BeamSearch(models, sentences, config, n_best)
    slots = jnp.arange(config.beam_size)

    def step(state, _):
        after, prediction, ends, end_log_p = search.step(state)
        log_p, parents, tokens, _ = search.best_extensions(state, prediction, 2 * config.beam_size)
        is_possible = (state.position < sentences.limits[0]) & ~state.done[0]
        log_p = jnp.concatenate([end_log_p[0], jnp.where(is_possible, log_p[0], -jnp.inf)])
        parents, tokens = (
            jnp.concatenate([slots, parents[0]]),
            jnp.concatenate([jnp.full_like(slots, EOS), tokens[0]]),
        )
        exists = jnp.isfinite(log_p).at[slots].min(ends[0])
        return after, Step(exists, parents, tokens, log_p)

    return jax.lax.scan(step, search.start(), length=sentences.max_length)[1]


def _make_nodes(steps: Step, pieces: Sequence[str], config: Config) -> list[Node]:
    nodes, live = [Node(None, pieces[BOS], 0.0, 0.0, KEPT)], [0]
    outcomes = [outcome for outcome in (ENDED, KEPT, DROPPED) for _ in range(config.beam_size)]
    for length, step in enumerate(zip(*(array.tolist() for array in steps), strict=True), start=1):
        first = len(nodes)
        for exists, parent, token, log_p, outcome in zip(*step, outcomes, strict=True):
            score = log_p / length_penalty(length, config)
            if exists:
                nodes.append(Node(live[parent], pieces[token], log_p, score, outcome))
        live = [i for i in range(first, len(nodes)) if nodes[i].outcome == KEPT]
    extended = {node.parent for node in nodes if node.outcome != DROPPED}
    return [
        dataclasses.replace(node, outcome=DROPPED)
        if node.outcome == KEPT and i not in extended
        else node
        for i, node in enumerate(nodes)
    ]
