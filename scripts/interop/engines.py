"""Certificates of int8 models, by two engines that read Firefox's format.

The engines are Bergamot's in WebAssembly, which node runs, and the Rust engine of the package
fxtranslate. Both translate greedily. Their translations are compared with a forward pass here that
has the same int8 weights.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import logging

from scripts.interop import bergamot, runtimes
from scripts.interop.activations import GreedyModel
from scripts.interop.certificate import Json, share_identical, uncertified
from scripts.interop.portable import PortableModel, Settings
from scripts.interop.runtimes import Unavailable
from scripts.interop.sentences import Sentences, default_sentences, usable
from scripts.interop.web import PACKAGE, WORKER
from transformer.decoding.bleu import bleu_language
from transformer.decoding.metrics import compute_metrics, metrics_in
from transformer.support import environment

NODE = ("node", runtimes.FOLDER / "bergamot_translator.mjs")
# fxtranslate segments texts as a unigram model does, whatever the kind of the vocabulary.
FXTRANSLATE = {"model.decoder_self_attention": "ssru", "tokenizer.kind": "unigram"}
# The bars of greedy translations. Rounding makes two correct engines differ now and then, and on
# texts that a model translates badly more often. Fewer than the second share mean that an engine
# reads another model.
MIN_CERTIFIED = 0.95
MIN_IDENTICAL = 0.5
MAX_BLEU_LOSS = 0.3  # from float32 here, of certified models


def certify(
    model: PortableModel,
    folder: Path,
    python: Path | None,
    sentences: Sentences | None,
    worker: Path,
) -> Json:
    """Returns the certificate of the model that `bergamot.write` wrote into a folder.

    `python` has fxtranslate, `worker` is the folder of the engine in WebAssembly. An engine that is
    missing, or that cannot decode the architecture, is left out. Raises CannotDecode if an engine
    fails.
    """
    # The weights and the shortlist that the engines read.
    written = bergamot.read(folder)
    quantized = model._replace(parameters=written.parameters, shortlist=written.shortlist)
    try:
        if python is None:
            raise Unavailable("--runtime=none")
        greedy = GreedyModel(quantized)
        sentences = usable(sentences or default_sentences(greedy.config), model, greedy.config)
        request = {
            "folder": str(folder.resolve()),
            "engine": str(worker.resolve()),
            "files": bergamot.files_in(folder),
            "sources": sentences.texts,
        }
        answers = _ask(request, python, worker, model.settings)
    except Unavailable as reason:
        return uncertified(reason)

    began = time.perf_counter()
    model = model._replace(shortlist=written.shortlist)
    ours, in_float32 = (
        [translation.text for translation in searched.translate(sentences.texts)]
        for searched in (greedy, GreedyModel(model))
    )
    seconds = {"ours": time.perf_counter() - began}
    language = bleu_language(greedy.config.data)
    metrics = metrics_in("comparison")

    def score(texts: Sequence[str]) -> Json | None:
        if sentences.references is None:
            return None
        return compute_metrics(texts, [sentences.references], language, metrics)

    engines = {}
    for name, answer in answers.items():
        seconds[name] = answer["seconds"]
        engines[name] = {
            "identical_greedy": share_identical(zip(ours, answer["greedy"], strict=True)),
            "identical_to_float32": share_identical(zip(in_float32, answer["greedy"], strict=True)),
            "bleu": score(answer["greedy"]),
            "versions": answer["versions"],
        }
    identical = min(engine["identical_greedy"] for engine in engines.values())
    scores = None
    if sentences.references is not None:
        worst = min((engine["bleu"] for engine in engines.values()), key=lambda each: each["bleu"])
        scores = {"ours": score(in_float32), "theirs": worst}
    verdict, reasons = judge(identical, scores)
    described = environment.describe_environment()
    translations = [answer["greedy"] for answer in answers.values()]
    between = share_identical(zip(*translations, strict=True)) if len(translations) > 1 else None
    return {
        "verdict": verdict,
        "reasons": reasons,
        "precision": "int8",
        "sentences": len(sentences.texts),
        "sentences_from": sentences.origin,
        "identical_greedy": identical,
        "identical_beam": None,
        "identical_engines": between,
        "largest_score_difference_per_token": None,
        "bleu": scores,
        "engines": engines,
        "versions": {"ours": {"commit": described["commit"], **described["packages"]}},
        "seconds": seconds,
    }


def _ask(request: Json, python: Path, worker: Path, settings: Settings) -> dict[str, Any]:
    """Returns the answers of the engines that can decode. Raises Unavailable if none can."""

    def bergamot_translator() -> Json:
        if not (worker / WORKER[0]).exists():
            raise Unavailable(f"{worker} is missing; make interop, or name it with --engine")
        return runtimes.run(NODE, request)

    def fxtranslate() -> Json:
        for key, value in FXTRANSLATE.items():
            if settings[key] != value:
                raise Unavailable(f"decodes only {key}={value}, not {settings[key]}")
        return runtimes.ask(python, "fxtranslate", request)

    answers = {}
    reasons = []
    for name, ask in {PACKAGE: bergamot_translator, "fxtranslate": fxtranslate}.items():
        try:
            answers[name] = ask()
        except Unavailable as reason:
            logging.warning("%s: left out: %s.", name, reason)
            reasons.append(f"{name}: {reason}")
    if not answers:
        raise Unavailable("; ".join(reasons))
    return answers


def judge(identical: float, scores: Json | None) -> tuple[str, list[str]]:
    """Returns the verdict on the fraction of identical translations, and its reasons."""
    if identical < MIN_IDENTICAL:
        return "below the bars", [
            f"{identical:.1%} of greedy translations are identical, must be {MIN_IDENTICAL:.0%}"
        ]
    is_as_good = scores is None or (
        scores["ours"]["bleu"] - scores["theirs"]["bleu"] <= MAX_BLEU_LOSS
    )
    return ("certified" if identical >= MIN_CERTIFIED and is_as_good else "measured"), []
