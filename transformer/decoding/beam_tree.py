"""The hypotheses that a beam search considers for a sentence: a tree, or those after a prefix."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.types import Config
from transformer.decoding.batches import Replicas, make_decoding_batches
from transformer.decoding.beam_search import BeamSearch, Models, SourceBatch, length_penalty
from transformer.decoding.control.control import Control
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import EMPTY, Translation, pieces_of
from transformer.support.errors import UserError
from transformer.support.special_tokens import BOS, EOS

KEPT = "kept"
DROPPED = "dropped"
ENDED = "ended"


class Node(NamedTuple):
    """A hypothesis: its parent extended by one token, `piece`.

    parent: index of the node that it extends; None for the root, which is BOS.
    log_probability: of all its tokens, in nats.
    score: log_probability / length penalty.
    outcome: `KEPT` if the search kept it and extended it, `ENDED` if it is complete, else
      `DROPPED`.
    """

    parent: int | None
    piece: str
    log_probability: float
    score: float
    outcome: str


class BeamTree(NamedTuple):
    """The hypotheses of a search.

    source_pieces: the source, EOS included.
    nodes: the root, and for each step the hypotheses that end, the K best extensions, and the K
      next best, which are dropped at once. A node follows its parent. Nodes of one depth follow
      each other, best first.
    best: the indices of the nodes on the path from the root to the translation.
    """

    source_pieces: tuple[str, ...]
    nodes: tuple[Node, ...]
    best: tuple[int, ...]


class Step(NamedTuple):
    """The hypotheses of a step: the K live ones with EOS, and 2 K extensions.

    The search keeps the first K extensions. `exists` marks the hypotheses that it considers.
    """

    exists: Bool[Array, "L 3K"]
    parents: Int[Array, "L 3K"]
    tokens: Int[Array, "L 3K"]
    log_p: Float[Array, "L 3K"]


def trace(decoder: TextDecoder, parameters: Replicas, text: str) -> BeamTree:
    """Returns the beam search for the translation of a text.

    Raises UserError if no hypothesis ends.
    """
    (source,) = decoder.source_tokens([text])
    source = source or [EOS]
    steps = _search_steps(decoder, parameters, source)
    nodes = _make_nodes(steps, decoder.tokenizer.target.pieces, decoder.decoding_config)

    # The path from the best ended hypothesis back to the root.
    ended = [i for i, node in enumerate(nodes) if node.outcome == ENDED]
    if not ended:
        raise UserError("the search finds no output; look at the parameters and decoding keys")
    path = []
    index: int | None = max(ended, key=lambda i: nodes[i].score)
    while index is not None:
        path.insert(0, index)
        index = nodes[index].parent
    return BeamTree(pieces_of(decoder.tokenizer.source, source), tuple(nodes), tuple(path))


def alternatives(
    decoder: ControlledDecoder, parameters: Replicas, text: str, prefix: str, count: int
) -> list[Translation]:
    """Returns a translation for each of the `count` likeliest tokens after the prefix.

    The translation with the likeliest token comes first. Raises UserError if the beam search
    considers fewer than `count` tokens, or no output has the prefix.
    """
    most = 2 * decoder.decoding_config.beam_size
    if count > most:
        raise UserError(
            f"count={count}: must be at most {most}, twice decoding.beam_size; raise that"
        )
    (source,) = decoder.source_tokens([text])
    if not source:
        return [EMPTY]
    tokens = decoder.control.encode_text("prefix", prefix)
    steps = _search_steps(decoder, parameters, source, [Control(tokens)])

    # The tokens that the search considers after the prefix; impossible ones have -inf.
    position = len(tokens)
    pairs = zip(steps.log_p[position].tolist(), steps.tokens[position].tolist(), strict=True)
    likeliest = sorted(pairs, key=lambda pair: -pair[0])[:count]
    controls = [Control([*tokens, token]) for log_p, token in likeliest if math.isfinite(log_p)]
    translations = decoder.translate(parameters, [text] * len(controls), controls=controls)
    return [best for (best,) in translations]


def _search_steps(
    decoder: TextDecoder, parameters: Replicas, source: list[int], *controls: Sequence[Control]
) -> Step:
    arrays_of = decoder.arrays_of([source], 1, *controls)
    (batch,) = make_decoding_batches({0: len(source)}, decoder.decoding_config.max_source_length, 1)
    search = decoder.jit(decoder.search, method=record, n_best=1, extra_length=None)
    ((_, steps),) = decoder.run_batches(search, parameters, [batch], arrays_of)
    return steps


def record(models: Models, sentences: SourceBatch, decoding_config: Config, n_best: int) -> Step:
    """Returns the L steps of the search for the one sentence; L is the longest output's length."""
    search = BeamSearch(models, sentences, decoding_config, n_best)
    slots = jnp.arange(decoding_config.beam_size)

    def step(state, _):
        # After the limit, or when the row is done, there are no extensions.
        after, prediction, ends, end_log_p = search.step(state)
        extensions = search.best_extensions(state, prediction, 2 * decoding_config.beam_size)
        is_possible = (state.position < sentences.limits[0]) & ~state.done[0]
        log_p = [end_log_p[0], jnp.where(is_possible, extensions.log_p[0], -jnp.inf)]
        log_p = jnp.concatenate(log_p)
        parents = jnp.concatenate([slots, extensions.parents[0]])
        tokens = jnp.concatenate([jnp.full_like(slots, EOS), extensions.tokens[0]])
        exists = jnp.isfinite(log_p).at[slots].min(ends[0])
        return after, Step(exists, parents, tokens, log_p)

    return jax.lax.scan(step, search.start(), length=sentences.max_length)[1]


def _make_nodes(steps: Step, pieces: Sequence[str], decoding_config: Config) -> list[Node]:
    # live: the nodes that the parents of a step refer to, by slot.
    nodes = [Node(None, pieces[BOS], 0.0, 0.0, KEPT)]
    live = [0]
    outcomes = [
        outcome for outcome in (ENDED, KEPT, DROPPED) for _ in range(decoding_config.beam_size)
    ]
    rows = zip(*(array.tolist() for array in steps), strict=True)
    for length, row in enumerate(rows, start=1):
        next_live = []
        for exists, parent, token, log_p, outcome in zip(*row, outcomes, strict=True):
            if not exists:
                continue
            if outcome == KEPT:
                next_live.append(len(nodes))
            score = log_p / length_penalty(length, decoding_config)
            nodes.append(Node(live[parent], pieces[token], log_p, score, outcome))
        live = next_live

    # The search dropped a hypothesis that it kept for a step if no kept one extends it.
    extended = {node.parent for node in nodes if node.outcome != DROPPED}
    for i, node in enumerate(nodes):
        if node.outcome == KEPT and i not in extended:
            nodes[i] = node._replace(outcome=DROPPED)
    return nodes
