"""The Python interface: a model that translates, scores, and shows its attention, encoder states
and searches.
"""

import contextlib
import copy
import dataclasses
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

from transformer.checkpoints import trained
from transformer.checkpoints.trained import Trained
from transformer.config.loading import parse_overrides, with_values
from transformer.data.languages import source_tag
from transformer.data.sources.mixture import check_direction
from transformer.decoding import forced_decoding
from transformer.decoding.beam_tree import BeamTree, alternatives, trace
from transformer.decoding.control.arguments import (
    check_controls,
    check_glossary,
    check_items,
    check_text,
    check_texts,
)
from transformer.decoding.control.control import Control
from transformer.decoding.forced_decoding import Attention, Encoding, is_scorable
from transformer.decoding.translation import Translation, encode
from transformer.support.errors import UserError
from transformer.support.special_tokens import UNK
from transformer.support.workers import call_all
from transformer.training.objectives import OBJECTIVES

# `transformer.load` imports this module; forked children inherit the value
LOADING_PROCESS = os.getpid()


def load(
    workdir: object, checkpoint: object, average: object, decoding: Mapping[str, object]
) -> "Model":
    """Returns the model that `transformer.load` describes."""
    _refuse_fork("load")
    folders = [workdir] if isinstance(workdir, str | os.PathLike) else workdir
    if not folders:
        raise UserError(
            f"workdir={workdir!r}: must be the folder of a run, or a list of such folders"
        )
    overrides = [(f"decoding.{key}", str(value)) for key, value in decoding.items()]
    try:
        return Model(
            trained.load(
                [os.fspath(folder) for folder in folders], str(checkpoint), average, overrides
            )
        )
    except UserError as error:  # those of commands begin with a flag
        raise UserError(str(error).removeprefix("--")) from None


class Model:
    """A trained model, or an ensemble of several. `transformer.load` returns it.

    `translate`, `score` and `encode` take any number of texts, compute them in batches of similar
    length, and return the results in the order of the texts. Each batch shape is compiled when it
    is first needed; JAX keeps compiled programs between processes only if you set its
    `jax_compilation_cache_dir`. Threads may share a model: a lock admits one call at a time. Forked
    processes cannot use a model, nor load one if their parent has.

    Attributes:
      config: the configuration of the (first) run, with the decoding keys given to `load`.
      checkpoints: the workdir and steps that each model comes from.
    """

    def __init__(self, models: Trained) -> None:
        self.config = models.config
        self.checkpoints = models.checkpoints
        self._decoder, self._parameters = models.decoder(takes_controls=True)
        self._lock = threading.Lock()
        self._loaded = models.config

    def __repr__(self) -> str:
        sources = [
            f"{checkpoint.workdir} at step {checkpoint.step}" for checkpoint in self.checkpoints
        ]
        return f"Model({', '.join(sources)})"

    def translate(
        self,
        texts: Iterable[str],
        n_best: int = 1,
        *,
        prefixes: Iterable[str] | None = None,
        required: Iterable[Iterable] | None = None,
        banned: Iterable[Iterable[str]] | None = None,
        glossary: Mapping[str, str | Iterable[str]] | None = None,
    ) -> list[list[Translation]]:
        """Returns the `n_best` translations of each text, best first, as the command
        `transformer.translate` does.

        A text without tokens, such as "", has `n_best` empty translations. A longer text than
        `config.decoding.max_source_length` tokens is cut, with a warning through absl's logger. A
        search returns different texts, with the best score of each, and fewer than `n_best` if its
        beam has no more. With strategy="sample" they are samples, in the order drawn, which depend
        on the seed and the text's position in `texts`. `n_best` is at most
        `config.decoding.beam_size` in a beam search.

        `prefixes` has for each text the beginning of its translations, which may end within a word;
        "" for none. `required` has for each text a list of phrases that its translations have. A
        phrase is a str, or a list of alternatives, of which one suffices. `banned` has for each
        text a list of phrases that its translations do not have. `glossary` gives terms their
        translation, or a list of alternatives, which the translations of texts with the term have:
        see `Glossary`. The translation is empty if the search finds none that obeys.

        Raises UserError if an argument is not allowed. A line in its message is the text's number,
        from 1.
        """
        texts = check_texts(texts, "texts")
        known = None if glossary is None else check_glossary(glossary)
        controls = check_controls(
            texts, {"prefix": prefixes, "required": required, "banned": banned}, known
        )
        if type(n_best) is not int or n_best < 1:
            raise UserError(f"n_best={n_best!r:.60}: must be an integer of at least 1")
        with self._ready("translate"):
            return self._decoder.translate(self._parameters, texts, n_best, controls=controls)

    def control_shapes(self, texts: Sequence[str], controls: Sequence[Control]) -> list[tuple]:
        """Returns the shapes of each text's control, for each of which its search is compiled.

        Raises UserError if no translation of a text can obey its control.
        """
        shapes = []
        for i, source in enumerate(self._decoder.source_tokens(texts, 1)):
            arrays = self._decoder.control.encode([controls[i]], [source], first_line=i + 1)([0])
            shapes.append(tuple((name, array.shape) for name, array in arrays.items()))
        return shapes

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[Translation]:
        """Returns the target of each (source, target) pair with its log-probabilities in nats, in
        total and per token.

        The target is encoded in its best segmentation; `translate` may have found the text in
        another one, with another log-probability. A text without tokens is only an end-of-sentence.

        Raises UserError, which names the item, if it is not a pair of texts, or a text has more
        tokens, end-of-sentence included, than the longest output of the search may have.
        """
        checked = []
        for i, pair in enumerate(check_items(pairs, "pairs", "(source, target) pairs")):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise UserError(
                    f"pairs[{i}]={pair!r:.60}: must be a pair of texts, (source, target)"
                )
            checked.append(tuple(check_texts(pair, f"pairs[{i}]")))
        with self._ready("score"):
            return forced_decoding.score_pairs(self._decoder, self._parameters, checked)

    def can_score(self, pair: tuple[str, str]) -> bool:
        """Tells whether both texts are short enough for `score`.

        Raises UserError if one cannot be tokenized.
        """
        return is_scorable(self._decoder, pair)

    def attention(self, source: str, target: str) -> Attention:
        """Returns the attention weights of every layer and head when the model reads `target` as
        output of `source`.

        Raises UserError if an argument is not a text or too long (see `score`), or the model is an
        ensemble.
        """
        source = check_text(source, "source")
        target = check_text(target, "target")
        with self._ready("attention", allows_ensemble=False):
            return forced_decoding.read_pair(self._decoder, self._parameters, source, target)

    def alternatives(self, text: str, prefix: str, count: int) -> list[Translation]:
        """Returns the best translation with each of the `count` likeliest tokens after a prefix,
        the likeliest first.

        The prefix may end within a word. There are fewer if the search allows fewer tokens there,
        and a text without tokens has one empty translation. Raises UserError as `translate` and
        `beam_tree` do, or if `count` is more than twice `config.decoding.beam_size`.
        """
        text = check_text(text, "text")
        prefix = check_text(prefix, "prefix")
        if type(count) is not int or count < 1:
            raise UserError(f"count={count!r:.60}: must be an integer of at least 1")
        with self._ready("alternatives"):
            return alternatives(self._decoder, self._parameters, text, prefix, count)

    def beam_tree(self, text: str) -> BeamTree:
        """Returns the hypotheses that a beam search for the text's translation considers, and their
        outcomes.

        The search has neither the coverage penalty nor the sentences before the text in a document.
        A long text is cut, with a warning, as in `translate`. Raises UserError if the strategy is
        not a beam search.
        """
        text = check_text(text, "text")
        with self._ready("beam_tree"):
            return trace(self._decoder, self._parameters, text)

    def encode(self, texts: Iterable[str]) -> list[Encoding]:
        """Returns the encoder's output for each text: states (S, D), without padding, and the
        pieces of the S rows.

        The last row belongs to end-of-sentence, the only one of a text without tokens. Raises
        UserError if an item is not a text or too long (see `score`), or the model is an ensemble or
        one of CTC, whose encoder repeats tokens.
        """
        texts = check_texts(texts, "texts")
        with self._ready("encode", allows_ensemble=False):
            return forced_decoding.encode_texts(self._decoder, self._parameters, texts)

    def with_decoding(self, **decoding: object) -> "Model":
        """Returns a model with the same parameters and lock, and other values of keys of the group
        `decoding`.

        Raises UserError if a value is not allowed, or for another `rerank`, `shortlist` or `dtype`.
        """
        model = copy.copy(self)
        overrides = [(f"decoding.{key}", str(value)) for key, value in decoding.items()]
        model.config = with_values(self.config, parse_overrides(overrides, ""))
        for key in ("rerank", "shortlist", "dtype"):
            if model.config.decoding[key] != self.config.decoding[key]:
                raise UserError(
                    f"{key}: cannot be changed in a loaded model; give it to transformer.load"
                )
        model._decoder = dataclasses.replace(self._decoder, config=model.config.decoding)
        return model

    def separate(self) -> "Model":
        """Returns a model with the same parameters and its own programs and lock.

        Neither delays the other. The search has one pass, as long as the longest output: for few
        sentences a second program would not pay.
        """
        model = self.with_decoding()
        model._lock = threading.Lock()
        model._decoder.extra_lengths = self._decoder.extra_lengths[-1:]
        return model

    def with_languages(self, source: str | None = None, target: str | None = None) -> "Model":
        """Returns a model with the same parameters and lock that translates between other
        languages.

        None: as before. Raises UserError if the model was not trained for several languages, or the
        vocabulary has no tag of these: see `data.source_tag`.
        """
        model = copy.copy(self)
        given = {"source_language": source, "target_language": target}
        languages = {f"data.{name}": code for name, code in given.items() if code is not None}
        if languages and self.config.decoding.rerank:
            raise UserError(
                "with_languages: the models of decoding.rerank are for one direction; load it by itself"
            )
        model.config = with_values(self.config, languages)
        check_direction(self._loaded.data, model.config.data)
        model._decoder = self._decoder.with_tag(source_tag(model.config.data))
        return model

    def compile(
        self,
        n_best: int = 1,
        text: str | None = None,
        control: Control | None = None,
    ) -> None:
        """Compiles all batch shapes of `translate` with this `n_best`.

        So no later call waits for a compiler. With a text and its control, it compiles only the
        programs that may translate this text.
        """
        with self._ready("translate"):
            parameters = self._parameters[self._decoder.devices[0]]
            if text is None:
                lengths = range(2, self.config.decoding.max_source_length + 1)
                call_all(self._decoder.compilations(parameters, lengths, n_best))
                return
            sources = self._decoder.source_tokens([text], 1)
            for search in self._decoder.control.searches(control):
                arrays_of = self._decoder.arrays_of(sources, 1, [search])
                call_all(
                    self._decoder.compilations(parameters, map(len, sources), n_best, arrays_of)
                )

    def num_tokens(self, text: str) -> int:
        """Returns the number of tokens of a source text, end-of-sentence included.

        Raises UserError as `translate`.
        """
        return len(self._tokens(text))

    def knows(self, text: str) -> bool:
        """True if the vocabulary has tokens for all of a source text.

        Raises UserError as `translate`.
        """
        return UNK not in self._tokens(text)

    def _tokens(self, text: str) -> list[int]:
        return encode(self._decoder.tokenizer.encoders[0], "text", check_text(text, "text"))

    @contextlib.contextmanager
    def _ready(self, method: str, allows_ensemble: bool = True) -> Iterator[None]:
        """Holds the lock.

        Raises UserError unless this process can run the method, and a model of this kind has it.
        """
        _refuse_fork(method)
        if len(self.checkpoints) > 1 and not allows_ensemble:
            raise UserError(
                f"{method}: is not defined for an ensemble of {len(self.checkpoints)}; load one workdir"
            )
        objective = self.config.training.objective
        if method not in OBJECTIVES[objective].methods:
            raise UserError(
                f"{method}: is not defined for a model of training.objective={objective}"
            )
        if (strategy := self.config.decoding.strategy) != "beam" and method in (
            "beam_tree",
            "alternatives",
        ):
            raise UserError(f"{method}: is not defined for decoding.strategy={strategy}")
        with self._lock:
            yield


def _refuse_fork(method: str) -> None:
    """Raises UserError in a child that was forked after a model was loaded: JAX's threads are not
    in it.
    """
    if os.getpid() != LOADING_PROCESS:
        raise UserError(
            f"{method}: JAX hangs in a process that was forked after a model was loaded; start the process with "
            'multiprocessing.get_context("spawn") and load the model in it'
        )
