"""The Python interface: a model that translates, scores, and shows its inner states."""

import contextlib
import copy
import dataclasses
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from transformer.checkpoints import loaded_models
from transformer.checkpoints.calibration import read_calibration
from transformer.checkpoints.loaded_models import Checkpoint
from transformer.config.loading import parse_overrides, with_values
from transformer.config.types import Config
from transformer.data.languages import source_tag
from transformer.data.sources.mixture import check_direction
from transformer.decoding import confidence, forced_decoding
from transformer.decoding.batches import Replicas
from transformer.decoding.beam_tree import BeamTree, alternatives, trace
from transformer.decoding.confidence import Calibration, Confidence
from transformer.decoding.control.arguments import (
    check_controls,
    check_glossary,
    check_items,
    check_text,
    check_texts,
)
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.decoders import is_scored_mbr
from transformer.decoding.forced_decoding import Attention, Encoding
from transformer.decoding.strategies import STRATEGIES
from transformer.decoding.translation import Translation, Translations, encode
from transformer.support.errors import UserError
from transformer.support.special_tokens import UNK
from transformer.support.workers import call_all
from transformer.training.objectives import OBJECTIVES

# The decoding keys that decide what `load` reads and converts.
LOADED_KEYS = ("rerank", "scorer", "shortlist", "dtype")
# `transformer.load` imports this module. Forked children inherit the value.
LOADING_PROCESS = os.getpid()


def load(
    workdir: object, checkpoint: object, average: int, decoding: Mapping[str, object]
) -> "Model":
    """Returns the model that `transformer.load` describes."""
    # One folder, or a list of folders for an ensemble.
    _refuse_fork("load")
    folders = [workdir] if isinstance(workdir, str | os.PathLike) else workdir
    if not (
        isinstance(folders, Collection)
        and folders
        and all(isinstance(folder, str | os.PathLike) for folder in folders)
    ):
        raise UserError(
            f"workdir={workdir!r}: must be the folder of a run, or a list of such folders"
        )
    _check_count("average", average)
    overrides = [(f"decoding.{key}", str(value)) for key, value in decoding.items()]
    paths = [os.fspath(folder) for folder in folders]
    try:
        models = loaded_models.load(paths, str(checkpoint), average, overrides)
        return Model(models.config, models.checkpoints, *models.decoder())
    except UserError as error:
        # Messages of commands begin with a flag.
        raise UserError(str(error).removeprefix("--")) from None


@dataclasses.dataclass(eq=False, repr=False)
class Model:
    """A trained model, or an ensemble of several, as `transformer.load` returns it.

    `translate`, `score` and `encode` take any number of texts, compute them in batches of similar
    length, and return the results in the order of the texts. Each batch shape is compiled when it
    is first needed; JAX keeps compiled programs between processes only if you set its
    `jax_compilation_cache_dir`. Threads may share a model: a lock admits one call at a time. Forked
    processes cannot use a model, nor load one if their parent has.

    Attributes:
      config: the configuration of the (first) run, with the decoding keys given to `load`.
      checkpoints: the workdir and steps that each model comes from.
      decoder, parameters: the search, and its parameters on each device.
    """

    config: Config
    checkpoints: Sequence[Checkpoint]
    decoder: ControlledDecoder
    parameters: Replicas

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        # `with_languages` checks new languages against the configuration at loading.
        self._loaded = self.config
        self._calibration: Calibration | None = None  # read when it is needed

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
    ) -> Translations:
        """Returns the `n_best` translations of each text, best first.

        They are equal to the output of the command `transformer.translate`. A text without tokens,
        such as "", has `n_best` empty translations. A text with more than
        `config.decoding.max_source_length` tokens is cut, with a warning through absl's logger. A
        search returns different texts, with the best score of each, and fewer than `n_best` if its
        beam has no more. In a beam search `n_best` is at most `config.decoding.beam_size`. With
        strategy="sample", the translations are samples in the order of drawing. They
        depend on the seed and on the text's position in `texts`.

        `prefixes` has the beginning of each text's translations, which may end within a word; "" is
        no prefix. `required` has, for each text, a list of phrases that its translations contain. A
        phrase is a str, or a list of alternatives, one of which suffices. `banned` has, for each
        text, a list of phrases that its translations do not contain. `glossary` maps terms to their
        translation, or to a list of alternatives; it applies to texts that contain the term: see
        `Glossary`. If the search finds no translation that obeys, the translation is empty.

        Raises UserError if an argument is not allowed. A line in its message is the text's number,
        counted from 1.
        """
        texts = check_texts(texts, "texts")
        checked_glossary = None if glossary is None else check_glossary(glossary)
        columns = {"prefix": prefixes, "required": required, "banned": banned}
        controls = check_controls(texts, columns, checked_glossary)
        _check_count("n_best", n_best)
        with self._ready("translate"):
            return self.decoder.translate(self.parameters, texts, n_best, controls=controls)

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[Translation]:
        """Returns the target of each (source, target) pair with its log-probabilities in nats.

        They are given in total and per token. The target is encoded in its best segmentation.
        `translate` may have found the text in another one, with another log-probability. A text
        without tokens is only an end-of-sentence.

        Raises UserError, which names the item, if it is not a pair of texts, or a text has more
        tokens, including end-of-sentence, than the longest output of the search.
        """
        # Each item is checked here, so that the message has its number.
        checked = []
        for i, pair in enumerate(check_items(pairs, "pairs", "(source, target) pairs")):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise UserError(
                    f"pairs[{i}]={pair!r:.60}: must be a pair of texts, (source, target)"
                )
            source, target = check_texts(pair, f"pairs[{i}]")
            checked.append((source, target))
        with self._ready("score"):
            return forced_decoding.score_pairs(self.decoder, self.parameters, checked)

    def confidence(
        self, texts: Iterable[str], translations: Iterable[Sequence[Translation]]
    ) -> list[list[Confidence]]:
        """Returns the confidence in each translation of each text.

        `translations` is the result of `translate` for these texts. Raises UserError if it has
        another form, or the workdir has no calibration for this model and its search. The command
        `scripts.calibrate` makes one: see docs/confidence.md.
        """
        texts = check_texts(texts, "texts")
        rows = check_items(translations, "translations", "lists of translations")
        are_lists = [type(row) for row in rows] == [list] * len(texts)
        if not are_lists or not all(isinstance(one, Translation) for row in rows for one in row):
            raise UserError("translations: must have a list for each text, as translate returns")
        with self._ready("confidence"):
            if self._calibration is None:
                self._calibration = read_calibration(self.config, self.checkpoints)
            return confidence.estimate(
                self._calibration, self.decoder, self.parameters, texts, rows
            )

    def attention(self, source: str, target: str) -> Attention:
        """Returns the attention weights of every layer and head, with `target` as the output.

        Raises UserError if an argument is not a text or too long (see `score`), or the model is an
        ensemble.
        """
        source = check_text(source, "source")
        target = check_text(target, "target")
        with self._ready("attention", allows_ensemble=False):
            return forced_decoding.read_pair(self.decoder, self.parameters, source, target)

    def alternatives(self, text: str, prefix: str, count: int) -> list[Translation]:
        """Returns the best translation for each of the `count` likeliest tokens after a prefix.

        The likeliest token is first. The prefix may end within a word. There are fewer translations
        if the search allows fewer tokens there, and a text without tokens has one empty
        translation. Raises UserError as `translate` and `beam_tree` do, or if `count` is more than
        twice `config.decoding.beam_size`.
        """
        text = check_text(text, "text")
        prefix = check_text(prefix, "prefix")
        _check_count("count", count)
        with self._ready("alternatives"):
            return alternatives(self.decoder, self.parameters, text, prefix, count)

    def beam_tree(self, text: str) -> BeamTree:
        """Returns all hypotheses of the beam search for the text's translation.

        The search has no coverage penalty, and does not see the sentences before the text in a
        document. A long text is cut, with a warning, as in `translate`. Raises UserError if the
        strategy is not a beam search.
        """
        text = check_text(text, "text")
        with self._ready("beam_tree"):
            return trace(self.decoder, self.parameters, text)

    def encode(self, texts: Iterable[str]) -> list[Encoding]:
        """Returns the encoder's output for each text: states (S, D), and the pieces of the S rows.

        There is no padding. The last row belongs to end-of-sentence, which is the only row of a
        text without tokens. Raises UserError if an item is not a text or too long (see `score`), or
        the model is an ensemble or a CTC model, because its encoder repeats tokens.
        """
        texts = check_texts(texts, "texts")
        with self._ready("encode", allows_ensemble=False):
            return forced_decoding.encode_texts(self.decoder, self.parameters, texts)

    def with_decoding(self, **decoding: object) -> "Model":
        """Returns a model with other decoding keys, and the same parameters and lock.

        Raises UserError if a value is not allowed, for another `rerank`, `scorer`, `shortlist` or
        `dtype`, or if the utility of MBR becomes the scorer or something else.
        """
        model = copy.copy(self)
        model._calibration = None  # it is for one search
        overrides = [(f"decoding.{key}", str(value)) for key, value in decoding.items()]
        model.config = with_values(self.config, parse_overrides(overrides, ""))
        before = self.config.decoding
        after = model.config.decoding
        is_changed = {key: after[key] != before[key] for key in LOADED_KEYS}
        is_changed["mbr_utility"] = is_scored_mbr(after) != is_scored_mbr(before)
        for key, value in is_changed.items():
            if value:
                raise UserError(
                    f"{key}: cannot be changed in a loaded model; give it to transformer.load"
                )
        # The placed parameters are shared. The programs depend on the decoding keys.
        model.decoder = dataclasses.replace(self.decoder, decoding_config=model.config.decoding)
        return model

    def with_languages(self, source: str | None = None, target: str | None = None) -> "Model":
        """Returns a model for other languages, with the same parameters and lock.

        None keeps a language. Raises UserError if the model was not trained for several languages,
        or the vocabulary has no tag for these: see `data.source_tag`.
        """
        model = copy.copy(self)
        model._calibration = None  # it is for one search
        languages = {}
        if source is not None:
            languages["data.source_language"] = source
        if target is not None:
            languages["data.target_language"] = target
        # Reranking models score one direction, or its reverse.
        if languages and self.config.decoding.rerank:
            raise UserError(
                "with_languages: the models of decoding.rerank are for one direction; "
                "load it by itself"
            )
        model.config = with_values(self.config, languages)
        check_direction(self._loaded.data, model.config.data)
        model.decoder = self.decoder.with_tag(source_tag(model.config.data))
        return model

    def compile(self, n_best: int = 1) -> None:
        """Compiles all batch shapes of `translate` with this `n_best`, without controls.

        Later calls for single sentences then do not wait for the compiler.
        """
        _check_count("n_best", n_best)
        with self._ready("translate"):
            # The parameters of one device suffice, since programs depend on shapes only.
            parameters = self.parameters[self.decoder.devices[0]]
            lengths = range(2, self.config.decoding.max_source_length + 1)
            call_all(self.decoder.compilations(parameters, lengths, n_best))

    def num_tokens(self, text: str) -> int:
        """Returns the number of tokens of a source text, including end-of-sentence.

        Raises UserError as `translate`.
        """
        return len(self._tokens(text))

    def knows(self, text: str) -> bool:
        """True if the vocabulary has tokens for all of a source text.

        Raises UserError as `translate`.
        """
        return UNK not in self._tokens(text)

    def _tokens(self, text: str) -> list[int]:
        return encode(self.decoder.tokenizer.encoders[0], "text", check_text(text, "text"))

    @contextlib.contextmanager
    def _ready(self, method: str, allows_ensemble: bool = True) -> Iterator[None]:
        """Holds the lock.

        Raises UserError unless this process can run the method, and a model of this kind has it.
        """
        _refuse_fork(method)
        if len(self.checkpoints) > 1 and not allows_ensemble:
            raise UserError(
                f"{method}: is not defined for an ensemble of {len(self.checkpoints)}; "
                "load one workdir"
            )
        # The table entry of an objective lists the methods of its models.
        objective = self.config.training.objective
        if method not in OBJECTIVES[objective].methods:
            raise UserError(
                f"{method}: is not defined for a model of training.objective={objective}"
            )
        strategy = self.config.decoding.strategy
        if method not in STRATEGIES[strategy].methods:
            raise UserError(f"{method}: is not defined for decoding.strategy={strategy}")
        # The lock also keeps two threads from compiling the same program.
        with self._lock:
            yield


def _check_count(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise UserError(f"{name}={value!r:.60}: must be an integer of at least 1")


def _refuse_fork(method: str) -> None:
    """Raises UserError in a child that was forked after a model was loaded.

    JAX's threads do not exist in the child.
    """
    if os.getpid() != LOADING_PROCESS:
        raise UserError(
            f"{method}: JAX hangs in a process that was forked after a model was loaded; start the "
            'process with multiprocessing.get_context("spawn") and load the model in it'
        )
