"""Certificates compare this project and another toolkit on the same sentences.

Both sides translate the sentences with the same model and score the same translations.
"""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import logging

from scripts.interop import untrusted
from scripts.interop.formats import Format
from scripts.interop.portable import PortableModel
from scripts.interop.runtimes import Unavailable, ask
from scripts.interop.sentences import Sentences, default_sentences, usable
from transformer.config.keys import validated_config
from transformer.config.loading import with_values
from transformer.config.types import Config, output_limit
from transformer.decoding.bleu import bleu_language
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.forced_decoding import is_scorable, score_pairs
from transformer.decoding.metrics import compute_metrics, metrics_in
from transformer.support import environment, files
from transformer.training.state import abstract_init

FILE_NAME = "certificate.json"
MARK = "BELOW-THE-BARS.txt"  # in a folder whose translations differ too much
SEARCHES = ("greedy", "beam")
# The bars, for models that both sides compute in float32.
MAX_DIFFERENCE = 1e-4  # of the log-probabilities of a translation, in nats per token
# The fraction of identical translations. If the scores are that close, it is 1 for greedy search.
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
    """Returns the certificate of a model.

    `model` is the model here, and `folder` is its file or folder in the format of `entry`. Without
    `sentences`, it takes the validation split or bundled sentences. Raises CannotDecode if the
    toolkit fails.
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
        # The sentences already begin with the tag.
        model = model._replace(tokenizer=model.tokenizer.with_tag(""))
        request = {
            "folder": str(folder.resolve()),
            "sources": sentences.texts,
            "quantization": quantization,
            **search_settings(sentences.texts, model, config),
        }
        # Both sides score the translations of this side.
        ours = decode(model, config, request, has_own_search=entry.has_own_search)
        theirs = ask(python, entry.runtime, request | {"references": ours["references"]})
        return compare(sentences, request, ours, theirs, config)
    except Unavailable as reason:
        return uncertified(reason)


def uncertified(reason: Exception) -> Json:
    """Returns the certificate of a model that the other toolkit has not run."""
    return {"verdict": "uncertified", "reasons": [str(reason)]}


def float32_config(model: PortableModel, search: Json) -> Config:
    """Returns the configuration of a toolkit's beam search in float32, without a shortlist."""
    settings = {
        "model.dtype": "float32",
        "decoding.dtype": "auto",
        "decoding.strategy": "beam",
        "decoding.shortlist": 0,
    }
    return validated_config(model.config | settings | search)


def search_settings(texts: Sequence[str], model: PortableModel, config: Config) -> Json:
    """Returns the settings of both searches, with one length limit for all sentences."""
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
    """Returns this project's answer to the request, with references for the other toolkit to score.

    The references are the translations of the beam search. With `has_own_search` the search has the
    settings of `config`, otherwise those of the request.
    """
    began = time.perf_counter()
    # A portable model of a workdir has its parameters in JAX's order.
    graph, shapes = abstract_init(config, *model.tokenizer.vocab_sizes)
    parameters = jax.tree.unflatten(jax.tree.structure(shapes), model.parameters.values())
    sources = request["sources"]
    max_length = request["max_length"]
    # Both sides get the same length limit, whatever the length of the source.
    limit = {"decoding.max_length_factor": 0.0, "decoding.max_extra_length": max_length}
    answer = {"ended": {}}
    for search in ("beam",) if has_own_search else SEARCHES:
        beam_size = 1 if search == "greedy" else request["beam_size"]
        settings = {} if has_own_search else limit | {"decoding.beam_size": beam_size}
        decoding = with_values(config, settings).decoding
        decoder = ControlledDecoder((graph,), model.tokenizer, decoding, jax.local_devices(), None)
        placed = decoder.place((parameters,))
        results = [best for (best,) in decoder.translate(placed, sources)]
        answer[search] = [best.text for best in results]
        answer["ended"][search] = [len(best.tokens) <= max_length for best in results]

    pairs = []
    for source, text in zip(sources, answer["beam"], strict=True):
        # The best segmentation of a text may be too long, unlike the tokens of the search.
        pairs.append((source, text if is_scorable(decoder, (source, text)) else ""))
    scored = score_pairs(decoder, placed, pairs)
    described = environment.describe_environment()
    return answer | {
        "scores": [target.log_probability for target in scored],
        "references": [{"text": target.text, "pieces": target.pieces[:-1]} for target in scored],
        "versions": {"commit": described["commit"], **described["packages"]},
        "seconds": time.perf_counter() - began,
    }


def compare(sentences: Sentences, request: Json, ours: Json, theirs: Json, config: Config) -> Json:
    """Returns the certificate of two answers.

    The shares of identical translations leave out translations that reach the length limit, because
    a toolkit may cut them or choose their end by other rules. Raises Unavailable if most
    translations reach the limit.
    """
    count = len(sentences.texts)
    at_limit = {}
    identical = {}
    for search in filter(theirs.get, SEARCHES):
        has_ended = ours["ended"][search]
        at_limit[search] = count - sum(has_ended)
        if sum(has_ended) < count / 2:
            raise Unavailable(
                f"most translations here reach the length limit of {request['max_length']} tokens"
            )
        triples = zip(ours[search], theirs[search], has_ended, strict=True)
        identical[search] = share_identical((our, their) for our, their, ended in triples if ended)

    difference = None
    if theirs["scores"] is not None:
        # A target has its pieces and end-of-sentence.
        triples = zip(ours["scores"], theirs["scores"], ours["references"], strict=True)
        difference = max(abs(a - b) / (len(target["pieces"]) + 1) for a, b, target in triples)

    # A quantized model has no bars, because some loss is expected.
    precision = theirs.get("precision") or request["quantization"] or "float32"
    verdict = "measured"
    reasons = []
    if precision == "float32":
        reasons = below_bars(identical, difference)
        verdict = "below the bars" if reasons else "certified"

    sides = {"ours": ours, "theirs": theirs}
    scores = None
    if sentences.references is not None:
        language = bleu_language(config.data)
        metrics = metrics_in("comparison")
        scores = {
            name: compute_metrics(side["beam"], [sentences.references], language, metrics)
            for name, side in sides.items()
        }
    seconds = {name: side["seconds"] for name, side in sides.items()}
    settings = {key: request[key] for key in ("beam_size", "length_penalty", "max_length")}
    return {
        "verdict": verdict,
        "reasons": reasons,
        "precision": precision,
        "sentences": count,
        "sentences_from": sentences.origin,
        "at_length_limit": at_limit,
        **{f"identical_{name}": identical.get(name) for name in SEARCHES},
        "largest_score_difference_per_token": difference,
        "bleu": scores,
        "search": settings | {"stopping": config.decoding.stopping},
        "versions": {name: side["versions"] for name, side in sides.items()},
        "seconds": seconds | {"search": theirs.get("search_seconds")},
    }


def share_identical(pairs: Iterable[tuple[str, str]]) -> float:
    """Returns the fraction of equal texts. The number of spaces between words does not matter."""
    same = [our.split() == their.split() for our, their in pairs]
    return sum(same) / len(same)


def below_bars(identical: Mapping[str, float], difference: float | None) -> list[str]:
    """Returns the reasons for which two sides that compute in float32 differ too much."""
    reasons = []
    # Greedy searches with the same scores must find the same translations.
    bars = dict.fromkeys(SEARCHES, MIN_IDENTICAL)
    if difference is not None:
        if difference <= MAX_DIFFERENCE:
            bars["greedy"] = 1.0
        else:
            reasons.append(
                f"scores differ by {difference:.2g} nats per token, may differ by "
                f"{MAX_DIFFERENCE:g}"
            )
    for search, share in identical.items():
        if share < bars[search]:
            reasons.append(
                f"{100 * share:.1f} % of {search} translations are identical, must be "
                f"{bars[search]:.0%}"
            )
    return reasons


def write(certificate: Json, digests: Mapping[str, str], folder: Path) -> None:
    """Writes the certificate into a folder, with the digests of the other toolkit's files.

    A certificate below the bars also gets the file `MARK`.
    """
    files.write_json(folder / FILE_NAME, files.six_digits(certificate | {"files": dict(digests)}))
    if certificate["verdict"] == "below the bars":
        files.write_text(folder / MARK, "".join(f"{reason}\n" for reason in certificate["reasons"]))


def digests_in(path: Path) -> dict[str, str]:
    """Returns the sha256 of a file, or of each regular file in a folder, by its path there."""
    folder = path if path.is_dir() else path.parent
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    # Hidden files, such as those of git, links out of the folder and pipes are not part of the
    # model.
    digests = {}
    for file in paths:
        is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if is_hidden or not untrusted.is_readable(file, untrusted.MAX_WEIGHTS):
            continue
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256")
        digests[str(file.relative_to(folder))] = digest.hexdigest()
    return digests


def conclude(certificate: Json, output: Path) -> None:
    """Prints the folder and logs a summary of the certificate.

    Exits with 1 if the model is below the bars.
    """
    # The folder is kept below the bars too.
    print(output, flush=True)
    verdict = certificate["verdict"]
    log = logging.warning if verdict == "uncertified" else logging.info
    log("%s: %s.", output, summary(certificate))
    if verdict == "below the bars":
        reasons = "; ".join(certificate["reasons"])
        logging.error("%s: below the bars: %s; %s has the comparison", output, reasons, FILE_NAME)
        raise SystemExit(1)


def summary(certificate: Json) -> str:
    """Describes a certificate in a sentence, without the reasons of a model below the bars."""
    verdict = certificate["verdict"]
    if verdict == "uncertified":
        return f"{verdict}: {'; '.join(certificate['reasons'])}"
    shares = []
    for search in SEARCHES:
        share = certificate[f"identical_{search}"]
        if share is not None:
            shares.append(f"{share:.1%} of {search}")
    results = f"{' and '.join(shares)} translations identical"
    difference = certificate["largest_score_difference_per_token"]
    if difference is None:
        results += ", scores not compared"
    else:
        results += f", scores within {difference:.2g} nats per token"
    precision = certificate["precision"]
    scores = certificate["bleu"]
    if scores:
        ours, theirs = (scores[side]["bleu"] for side in ("ours", "theirs"))
        results += f", BLEU {ours:.1f} here in float32, {theirs:.1f} there in {precision}"
    return f"{verdict} in {precision} on {certificate['sentences']} sentences: {results}"
