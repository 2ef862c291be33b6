"""The hypotheses that a beam search considers for one sentence: all of them as a tree, or those after a prefix."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config_types import Config
from transformer.decoding.batches import Replicas, make_batches
from transformer.decoding.beam_search import Models, Sentences, State
from transformer.decoding.control import Control
from transformer.decoding.lengths import length_penalty
from transformer.decoding.required_phrases import make_search
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import EMPTY, Translation
from transformer.errors import UserError
from transformer.special_tokens import BOS, EOS

KEPT, DROPPED, ENDED = "kept", "dropped", "ended"


@dataclass(frozen=True)
class Node:
    """A hypothesis: its parent extended by one token, `piece`.

    parent: index of the node that it extends; None for the root, which is BOS.
    log_probability: of all its tokens, in nats. score: log_probability / length penalty.
    outcome: `KEPT` if the search kept it and extended it, `ENDED` if it is complete, else `DROPPED`.
    """

    parent: int | None
    piece: str
    log_probability: float
    score: float
    outcome: str


@dataclass(frozen=True)
class BeamTree:
    """The hypotheses of a search. A node follows its parent, and nodes of one depth are together, best first.

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


def trace(decoder: TextDecoder, parameters: Replicas, text: str) -> BeamTree:
    """Returns the beam search for the translation of a text."""
    (source,) = decoder.source_tokens([text], first_line=1)
    source = source or [EOS]
    steps = _search_steps(decoder, parameters, source, Control())
    source_pieces, target_pieces = (side.pieces for side in decoder.tokenizer.sides)
    nodes = _make_nodes(steps, target_pieces, decoder.config)
    best = [max((i for i, node in enumerate(nodes) if node.outcome == ENDED), key=lambda i: nodes[i].score)]
    while (parent := nodes[best[0]].parent) is not None:
        best.insert(0, parent)
    return BeamTree(tuple(source_pieces[token] for token in source), tuple(nodes), tuple(best))


def alternatives(decoder: TextDecoder, parameters: Replicas, text: str, prefix: str, count: int) -> list[Translation]:
    """Returns a translation for each of the `count` likeliest tokens after the prefix, the likeliest token first.

    Raises UserError if the beam search does not consider so many tokens, or no output has the prefix.
    """
    if count > (most := 2 * decoder.config.beam_size):
        raise UserError(f"count={count}: must be at most {most}, twice decoding.beam_size; raise that")
    (source,) = decoder.source_tokens([text], first_line=1)
    if not source:
        return [EMPTY]
    tokens = decoder.control.encode_text("prefix", prefix)
    steps = _search_steps(decoder, parameters, source, Control(tokens))
    _, _, (end_log_p, *_), _, following, log_p = (array[len(tokens)].tolist() for array in steps)
    following = sorted([(end_log_p, EOS), *zip(log_p, following, strict=True)], key=lambda pair: -pair[0])
    controls = [Control([*tokens, token]) for value, token in following[:count] if math.isfinite(value)]
    return [best for (best,) in decoder.translate(parameters, [text] * len(controls), controls=controls)]


def _search_steps(decoder: TextDecoder, parameters: Replicas, source: Sequence[int], control: Control) -> Step:
    """Returns the steps of the search for the translation of a source."""
    arrays_of = decoder.arrays_of([source], first_line=1, controls=[control])
    (batch,) = make_batches({0: len(source)}, decoder.config.max_source_length, 1)
    search = decoder.jit(decoder.search, method=record, n_best=1, extra_length=None)
    ((_, steps),) = decoder.map(search, parameters, [batch], arrays_of)
    return steps


def record(models: Models, sentences: Sentences, config: Config, n_best: int) -> Step:
    """Returns the steps of the search for the one sentence, as many as the longest output has tokens."""
    search = make_search(models, sentences, config, n_best)

    def step(state: State, _) -> tuple[State, Step]:
        is_taken, extensions = search.is_unfinished(state), search.extend(state)
        count = 2 * config.beam_size
        log_p, parents, tokens, _ = search.best_extensions(state, extensions.prediction, count)
        log_p = jnp.where(state.position < sentences.limits[0], log_p, -jnp.inf)
        considered = Step(is_taken, extensions.ends[0], extensions.end_log_p[0], parents[0], tokens[0], log_p[0])
        return jax.lax.cond(is_taken, lambda: search.advance(state, extensions), lambda: state), considered

    return jax.lax.scan(step, search.start(), length=sentences.max_length)[1]


def _make_nodes(steps: Step, pieces: Sequence[str], config: Config) -> list[Node]:
    nodes, live = [Node(None, pieces[BOS], 0.0, 0.0, KEPT)], [0] * config.beam_size
    outcomes = [KEPT] * config.beam_size + [DROPPED] * config.beam_size
    for length, step in enumerate(zip(*(array.tolist() for array in steps), strict=True), start=1):
        is_taken, ends, end_log_p, parents, tokens, log_p = step
        if not is_taken:
            break
        considered = [(slot, EOS, value, ENDED) for slot, value in enumerate(end_log_p) if ends[slot]]
        considered += zip(parents, tokens, log_p, outcomes, strict=True)
        considered = [extension for extension in considered if math.isfinite(extension[2])]
        first_kept = len(nodes) + sum(outcome == ENDED for *_, outcome in considered)
        for parent, token, value, outcome in considered:
            score = value / length_penalty(length, config)
            nodes.append(Node(live[parent], pieces[token], value, score, outcome))
        live = [first_kept + slot for slot in range(config.beam_size)]
    parents_of_kept = {node.parent for node in nodes if node.outcome != DROPPED}
    return [
        node if i in parents_of_kept or node.outcome == ENDED else dataclasses.replace(node, outcome=DROPPED)
        for i, node in enumerate(nodes)
    ]
