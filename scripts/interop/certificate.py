"""Certificates: the same sentences, translated and scored by this project and by the other toolkit,
and compared.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import logging

from scripts.interop import untrusted
from scripts.interop.formats import Format
from scripts.interop.portable import PortableModel
from scripts.interop.runtimes import Unavailable, ask
from scripts.interop.sentences import Sentences, default_sentences, usable
from transformer.config.keys import checked
from transformer.config.loading import with_values
from transformer.config.types import Config, output_limit
from transformer.decoding import bleu
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.forced_decoding import is_scorable, score_pairs
from transformer.support import environment, files
from transformer.training.state import abstract_init

FILE_NAME = "certificate.json"
MARK = "BELOW-THE-BARS.txt"  # in a folder whose translations differ too much
SEARCHES = ("greedy", "beam")
# The bars, for models that both sides compute in float32.
MAX_DIFFERENCE = 1e-4  # of the log-probabilities of a translation, in nats per token
# of the beam translations, and of the greedy ones; of these all if the scores are that close
MIN_IDENTICAL = 0.99


Json = dict[str, Any]


def certify(
    model: PortableModel,
    folder: Path,
    entry: Format,
    python: Path | None,
    sentences: Sentences | None,
    quantization: str | None,
) -> Json:
    """Returns the certificate of a model here and the model in a file or folder of a format and a
    quantization.

    Raises CannotDecode if the toolkit fails.
    """
    try:
        if entry.runtime is None:
            raise Unavailable("no toolkit translates this format")
        if python is None:
            raise Unavailable("--runtime=none")
        if not python.exists():
            raise Unavailable(
                f"{python} is missing; make interop, or name a Python with --runtime=PYTHON"
            )
        config = float32_config(model, entry.search)
        sentences = usable(sentences or default_sentences(config), model, config)
        # the sentences begin with the tag
        model = model._replace(tokenizer=model.tokenizer.tagged(""))
        request = {
            "folder": str(folder.resolve()),
            "sources": sentences.texts,
            "quantization": quantization,
        }
        request |= search_settings(sentences.texts, model, config)
        ours = decode(model, config, request, has_own_search=entry.has_own_search)
        theirs = ask(python, entry.runtime, request | {"references": ours["references"]})
        return compare(sentences, request, ours, theirs, config)
    except Unavailable as reason:
        return uncertified(reason)


def uncertified(reason: Exception) -> Json:
    """Returns the certificate of a model that the other toolkit has not translated with."""
    return {"verdict": "uncertified", "reasons": [str(reason)]}


def float32_config(model: PortableModel, search: Json) -> Config:
    """Returns the configuration with a toolkit's beam search over the whole vocabulary in float32."""
    settings = {"model.dtype": "float32", "decoding.dtype": "auto"}
    settings |= {"decoding.strategy": "beam", "decoding.shortlist": 0}
    return checked(model.config | settings | search)


def search_settings(texts: Sequence[str], model: PortableModel, config: Config) -> Json:
    """Returns the settings of the search on both sides: one length limit for all sentences, and
    length^alpha.
    """
    longest = max(map(len, model.tokenizer.source.encode(list(texts))))
    decoding = config.decoding
    # A toolkit's tables of positions may end at max_source_length.
    max_length = min(output_limit(longest, decoding), decoding.max_source_length - 1)
    return {
        "beam_size": decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "max_length": max_length,
    }


def decode(
    model: PortableModel, config: Config, request: Json, has_own_search: bool = False
) -> Json:
    """Returns this project's answer to the request, and the references that the other toolkit is to
    score.

    The search is that of the configuration if the other side has it, else the one that the request
    describes.
    """
    began = time.perf_counter()
    graph, expected = abstract_init(config, *model.tokenizer.vocab_sizes)
    parameters = jax.tree.unflatten(jax.tree.structure(expected), model.parameters.values())
    limit = {"decoding.max_length_factor": 0.0, "decoding.max_extra_length": request["max_length"]}
    answer = {"ended": {}}
    for search in ("beam",) if has_own_search else SEARCHES:
        beam_size = 1 if search == "greedy" else request["beam_size"]
        settings = {} if has_own_search else limit | {"decoding.beam_size": beam_size}
        decoding = with_values(config, settings).decoding
        decoder = ControlledDecoder((graph,), model.tokenizer, decoding, jax.local_devices(), None)
        placed = decoder.place((parameters,))
        results = [best for (best,) in decoder.translate(placed, request["sources"])]
        answer[search] = [best.text for best in results]
        answer["ended"][search] = [len(best.tokens) <= request["max_length"] for best in results]
    found = zip(request["sources"], answer["beam"], strict=True)
    # The best segmentation of a text may be longer than the one that was found.
    pairs = [pair if is_scorable(decoder, pair) else (pair[0], "") for pair in found]
    scored = score_pairs(decoder, placed, pairs)
    references = [
        {"text": text, "pieces": known.pieces[:-1]}
        for (_, text), known in zip(pairs, scored, strict=True)
    ]
    answer |= {"scores": [known.log_probability for known in scored], "references": references}
    described = environment.describe_environment()
    versions = {"commit": described["commit"], **described["packages"]}
    return answer | {"versions": versions, "seconds": time.perf_counter() - began}


def compare(sentences: Sentences, request: Json, ours: Json, theirs: Json, config: Config) -> Json:
    """Returns the certificate of two answers. Raises Unavailable if most translations reach the
    length limit.

    A toolkit may cut such a translation or choose its end by other rules, so shares leave these
    out.
    """
    precision = theirs.get("precision") or request["quantization"] or "float32"
    # whether the translations that end before the limit are equal, apart from the number of their
    # spaces
    equal = {}
    for search in filter(theirs.get, SEARCHES):
        triples = zip(ours[search], theirs[search], ours["ended"][search], strict=True)
        equal[search] = [
            first.split() == second.split() for first, second, has_ended in triples if has_ended
        ]
    count = len(sentences.texts)
    if min(map(len, equal.values())) < count / 2:
        raise Unavailable(
            f"most translations here reach the length limit of {request['max_length']} tokens"
        )
    identical = {search: sum(same) / len(same) for search, same in equal.items()}
    difference = None
    if theirs["scores"] is not None:
        triples = zip(ours["scores"], theirs["scores"], ours["references"], strict=True)
        difference = max(abs(a - b) / (len(known["pieces"]) + 1) for a, b, known in triples)
    reasons = below_bars(identical, difference) if precision == "float32" else []
    language = bleu.bleu_language(config.data)
    sides = {"ours": ours, "theirs": theirs}
    scores = None
    if (references := sentences.references) is not None:
        metrics = bleu.metrics_in("comparison")
        scores = {
            name: bleu.score(side["beam"], [references], language, metrics)
            for name, side in sides.items()
        }
    verdict = "measured" if precision != "float32" else "below the bars" if reasons else "certified"
    return {
        "verdict": verdict,
        "reasons": reasons,
        "precision": precision,
        "sentences": count,
        "sentences_from": sentences.origin,
        "at_length_limit": {search: count - len(same) for search, same in equal.items()},
        **{f"identical_{search}": identical.get(search) for search in SEARCHES},
        "largest_score_difference_per_token": difference,
        "bleu": scores,
        "search": {key: request[key] for key in ("beam_size", "length_penalty", "max_length")}
        | {"stopping": config.decoding.stopping},
        "versions": {name: side["versions"] for name, side in sides.items()},
        "seconds": {name: side["seconds"] for name, side in sides.items()}
        | {"search": theirs.get("search_seconds")},
    }


def below_bars(identical: Mapping[str, float], difference: float | None) -> list[str]:
    """Returns the reasons for which two sides that compute in float32 differ too much."""
    reasons = []
    is_close = difference is not None and difference <= MAX_DIFFERENCE
    if difference is not None and not is_close:
        reasons.append(
            f"scores differ by {difference:.2g} nats per token, may differ by {MAX_DIFFERENCE:g}"
        )
    for search, bar in (("greedy", 1.0 if is_close else MIN_IDENTICAL), ("beam", MIN_IDENTICAL)):
        if search in identical and identical[search] < bar:
            reasons.append(
                f"{100 * identical[search]:.1f} % of {search} translations are identical, must be {bar:.0%}"
            )
    return reasons


def write(certificate: Json, digests: Mapping[str, str], folder: Path) -> None:
    """Writes the certificate into a folder, with the digests of the other toolkit's files, and
    marks a bad one.
    """
    files.write_json(folder / FILE_NAME, files.six_digits({**certificate, "files": dict(digests)}))
    if certificate["verdict"] == "below the bars":
        files.write_text(folder / MARK, "".join(f"{reason}\n" for reason in certificate["reasons"]))


def digests_in(path: Path) -> dict[str, str]:
    """Returns the sha256 of a file, or of each regular file in a folder, by its path there."""
    folder = path if path.is_dir() else path.parent
    paths = sorted(filter(untrusted.is_readable, path.rglob("*"))) if path.is_dir() else [path]
    digests = {}
    for file in paths:
        with file.open("rb") as content:
            digests[str(file.relative_to(folder))] = hashlib.file_digest(
                content, "sha256"
            ).hexdigest()
    return digests


def conclude(certificate: Json, output: Path) -> None:
    """Prints the folder and logs a summary of the certificate.

    Exits with 1 if the model is below the bars.
    """
    print(output, flush=True)
    verdict = certificate["verdict"]
    reasons = "; ".join(certificate["reasons"])
    if verdict == "uncertified":
        logging.warning("%s: uncertified: %s.", output, reasons)
        return
    precision = certificate["precision"]
    difference = certificate["largest_score_difference_per_token"]
    shares = [
        f"{share:.1%} of {name}"
        for name in SEARCHES
        if (share := certificate[f"identical_{name}"]) is not None
    ]
    results = [f"{' and '.join(shares)} translations identical"]
    results.append(
        "scores not compared"
        if difference is None
        else f"scores within {difference:.2g} nats per token"
    )
    if certificate["bleu"]:
        ours, theirs = (certificate["bleu"][side]["bleu"] for side in ("ours", "theirs"))
        results.append(f"BLEU {ours:.1f} here in float32, {theirs:.1f} there in {precision}")
    count = certificate["sentences"]
    results = ", ".join(results)
    logging.info("%s: %s in %s on %d sentences: %s.", output, verdict, precision, count, results)
    if reasons:
        logging.error("%s: below the bars: %s; %s has the comparison", output, reasons, FILE_NAME)
        raise SystemExit(1)
