"""Certificates: the same sentences, translated and scored by this project and by the other toolkit, and compared."""

import hashlib
import json
import math
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from absl import logging

from configs import base
from scripts.interop.portable import PortableModel
from transformer import environment, files
from transformer.config.loading import with_values
from transformer.config_types import Config
from transformer.data.languages import base_code
from transformer.data.sources.lines import read_text_file
from transformer.data.sources.source import read_pairs
from transformer.decoding import bleu
from transformer.decoding.forced_decoding import is_scorable, longest_text
from transformer.decoding.text_decoder import TextDecoder
from transformer.errors import MALFORMED, UserError
from transformer.training.state import abstract_init

FILE_NAME = "certificate.json"
MARK = "BELOW-THE-BARS.txt"  # in a folder whose translations differ too much
FOLDER = Path(__file__).resolve().parent
BUNDLED = FOLDER / "sentences.tsv"
MAX_SENTENCES = 1000
# The bars, for models that both sides compute in float32.
MAX_DIFFERENCE = 1e-4  # of the log-probabilities of a translation, in nats per token
MIN_IDENTICAL = 0.99  # of the beam translations, and of the greedy ones; of these all if the scores are that close


@dataclass(frozen=True)
class Sentences:
    """Sentences to translate, with references if there are any."""

    origin: str
    texts: list[str]
    references: list[str] | None = None


class Unavailable(Exception):
    """Raised if there is nothing to compare."""


def choose_sentences(config: Config, path: str | None) -> Sentences:
    """Returns the sentences of a file; without one the validation split or, if its data is missing, bundled ones."""
    if path is not None:
        texts = read_text_file(Path(path))
        if not any(text.strip() for text in texts):
            raise UserError(f"--sentences={path}: has no sentence")
        return Sentences(path, texts)
    try:
        return Sentences("the validation split", *read_pairs(config.data, "valid"))
    except UserError as error:
        language = base_code(config.data.source_language)
        lines = [line.split("\t") for line in BUNDLED.read_text(encoding="utf-8").splitlines()]
        bundled = {code: [text for name, text in lines if name == code] for code, _ in lines}
        if language not in bundled:
            logging.warning("No sentence in %s is bundled; name some with --sentences=FILE.", language)
        logging.info("No validation split (%s): the certificate is for bundled sentences.", error)
        language = language if language in bundled else "en"
        return Sentences(f"bundled sentences ({language})", bundled[language])


def find_python(flag: str | None) -> Path | None:
    """Returns the Python with the other toolkits, if there is one. Raises UserError if --runtime names none."""
    if flag is not None and flag != "none" and shutil.which(flag) is None:
        raise UserError(f"--runtime={flag}: no such program; name the Python with the other toolkits, or none")
    python = Path(flag or environment.REPOSITORY / ".venv-interop" / "bin" / "python")
    return None if flag == "none" or not (flag or python.exists()) else python


def certify(
    model: PortableModel,
    folder: Path,
    runtime: str | None,
    python: Path | None,
    file: str | None,
    quantization: str | None,
) -> dict[str, Any]:
    """Returns the certificate of a model here and the other toolkit's in a file or folder, on the sentences of `file`.

    `runtime` is that of the `Format`, `quantization` that of the export.
    """
    config = float32_config(model)
    try:
        if runtime is None:
            raise Unavailable("no toolkit translates this format")
        if python is None:
            raise Unavailable("no Python with the other toolkits; make interop, or name one with --runtime=PYTHON")
        sentences = usable(choose_sentences(config, file), model, config)
        request = {"folder": str(folder.resolve()), "sources": sentences.texts, "quantization": quantization}
        request |= search_settings(sentences.texts, model, config)
        ours = decode(model, config, request)
        theirs = ask(python, runtime, request | {"references": ours["references"]})
    except Unavailable as reason:
        return {"verdict": "uncertified", "reasons": [str(reason)]}
    return compare(sentences, request, ours, theirs, config)


def float32_config(model: PortableModel) -> Config:
    """Returns the configuration with a beam search over the whole vocabulary in float32."""
    settings = {"model.dtype": "float32", "decoding.strategy": "beam", "decoding.shortlist": 0}
    return with_values(base.get_config(), model.config | settings | {"decoding.forbid_unk": True})


def usable(sentences: Sentences, model: PortableModel, config: Config) -> Sentences:
    """Returns the first sentences that have tokens and are not too long. Raises Unavailable if there are none."""
    lengths = [len(tokens) for tokens in model.tokenizer.source.encode(sentences.texts)]
    kept = [i for i, length in enumerate(lengths) if 0 < length < config.decoding.max_source_length][:MAX_SENTENCES]
    if not kept:
        raise Unavailable(f"{sentences.origin}: no sentence has 1 to {config.decoding.max_source_length - 1} tokens")
    texts = [" ".join(sentences.texts[i].splitlines()) for i in kept]
    return Sentences(sentences.origin, texts, sentences.references and [sentences.references[i] for i in kept])


def search_settings(texts: Sequence[str], model: PortableModel, config: Config) -> dict[str, Any]:
    """Returns the settings of the search on both sides: one length limit for all sentences, and length^alpha."""
    longest = max(map(len, model.tokenizer.source.encode(list(texts))))
    limit = math.ceil(config.decoding.max_length_factor * longest) + config.decoding.max_extra_length
    settings = {"beam_size": config.decoding.beam_size, "length_penalty": config.decoding.length_penalty}
    return settings | {"max_length": limit}


def decode(model: PortableModel, config: Config, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns this project's answer to the request, and the references that the other toolkit is to score."""
    began = time.perf_counter()
    graph, expected = abstract_init(config, *model.tokenizer.vocab_sizes)
    parameters = jax.tree.unflatten(jax.tree.structure(expected), model.parameters.values())
    limit = {"decoding.max_length_factor": 0.0, "decoding.max_extra_length": request["max_length"]}
    answer: dict[str, Any] = {}
    for search, beam_size in (("greedy", 1), ("beam", request["beam_size"])):
        settings = limit | {"decoding.length_penalty_form": "power", "decoding.beam_size": beam_size}
        decoding = with_values(config, settings).decoding
        decoder = TextDecoder((graph,), model.tokenizer, decoding, jax.local_devices(), None)
        placed = decoder.place((parameters,))
        answer[search] = [best.text for (best,) in decoder.translate(placed, request["sources"])]
    pairs = list(zip(request["sources"], answer["beam"], strict=True))
    # The best segmentation of a text may be longer than the one that was found.
    can_score = [is_scorable(model.tokenizer, pair, longest_text(decoding)) for pair in pairs]
    pairs = [(source, text if can else "") for (source, text), can in zip(pairs, can_score, strict=True)]
    scored = decoder.score(placed, pairs)
    references = [{"text": text, "pieces": known.pieces[:-1]} for (_, text), known in zip(pairs, scored, strict=True)]
    answer |= {"scores": [known.log_probability for known in scored], "references": references}
    described = environment.describe_environment()
    versions = {"commit": described["commit"], **described["packages"]}
    return answer | {"versions": versions, "seconds": time.perf_counter() - began}


def ask(python: Path, runtime: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the other toolkit's answer, by the protocol of `scripts.interop.runtimes`.

    Raises Unavailable if its packages are missing, and UserError if it fails.
    """
    program, began = FOLDER / "runtimes" / f"{runtime}.py", time.perf_counter()
    # -I: else Python would import the program's folder, where ctranslate2.py is not the toolkit.
    command, text = [str(python), "-I", str(program)], json.dumps(request)
    try:
        done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", errors="replace", check=False)
    except OSError as error:
        raise Unavailable(f"{python}: {error.strerror}") from error
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        if reason.startswith(("ModuleNotFoundError", "ImportError")):
            raise Unavailable(f"{python}: {reason}; make interop")
        raise UserError(f"the other toolkit cannot decode it: {reason:.300}")
    try:
        answer = json.loads(done.stdout)
        count, scores = len(request["sources"]), answer["scores"]
        if not len(answer["greedy"]) == len(answer["beam"]) == len(scores or answer["beam"]) == count:
            raise ValueError(f"not {count} translations")
        return answer | {"versions": dict(answer["versions"]), "seconds": time.perf_counter() - began}
    except MALFORMED as error:
        raise UserError(f"{program}: the answer breaks the protocol ({type(error).__name__}: {error})") from error


def compare(
    sentences: Sentences, request: Mapping[str, Any], ours: dict[str, Any], theirs: dict[str, Any], config: Config
) -> dict[str, Any]:
    """Returns the certificate of two answers."""
    precision = theirs.get("precision") or request["quantization"] or "float32"
    identical = {search: identical_share(ours[search], theirs[search]) for search in ("greedy", "beam")}
    difference = None
    if theirs["scores"] is not None:
        triples = zip(ours["scores"], theirs["scores"], ours["references"], strict=True)
        difference = max(abs(a - b) / (len(known["pieces"]) + 1) for a, b, known in triples)
    reasons = below_bars(identical, difference) if precision == "float32" else []
    language, sides = bleu.bleu_language(config.data), {"ours": ours, "theirs": theirs}
    scores = sentences.references and {
        name: bleu.score(side["beam"], [sentences.references], language, ["bleu"]) for name, side in sides.items()
    }
    return {
        "verdict": ("below the bars" if reasons else "certified") if precision == "float32" else "measured",
        "reasons": reasons,
        "precision": precision,
        "sentences": len(sentences.texts),
        "sentences_from": sentences.origin,
        **{f"identical_{search}": share for search, share in identical.items()},
        "largest_score_difference_per_token": difference,
        "bleu": scores or None,
        "search": {key: request[key] for key in ("beam_size", "length_penalty", "max_length")},
        "versions": {name: side["versions"] for name, side in sides.items()},
        "seconds": {name: side["seconds"] for name, side in sides.items()},
    }


def identical_share(first: Sequence[str], second: Sequence[str]) -> float:
    """Returns the fraction of texts that are equal, apart from the number of their spaces."""
    return sum(a.split() == b.split() for a, b in zip(first, second, strict=True)) / len(first)


def below_bars(identical: Mapping[str, float], difference: float | None) -> list[str]:
    """Returns the reasons for which two sides that compute in float32 differ too much."""
    reasons, is_close = [], difference is not None and difference <= MAX_DIFFERENCE
    if difference is not None and not is_close:
        reasons.append(f"scores differ by {difference:.2g} nats per token, may differ by {MAX_DIFFERENCE:g}")
    for search, bar in (("greedy", 1.0 if is_close else MIN_IDENTICAL), ("beam", MIN_IDENTICAL)):
        if identical[search] < bar:
            reasons.append(f"{100 * identical[search]:.1f} % of {search} translations are identical, must be {bar:.0%}")
    return reasons


def write(certificate: Mapping[str, Any], digests: Mapping[str, str], folder: Path) -> None:
    """Writes the certificate into a folder, with the digests of the other toolkit's files, and marks a bad one."""
    files.write_json(folder / FILE_NAME, files.six_digits({**certificate, "files": dict(digests)}))
    if certificate["verdict"] == "below the bars":
        files.write_text(folder / MARK, "".join(f"{reason}\n" for reason in certificate["reasons"]))


def digests_in(path: Path) -> dict[str, str]:
    """Returns the sha256 of a file, or of each file in a folder, by its path there."""
    folder = path if path.is_dir() else path.parent
    paths = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in paths}


def conclude(certificate: Mapping[str, Any], output: Path) -> None:
    """Prints the folder, says what the certificate says and, if it is below the bars, exits with 1."""
    print(output, flush=True)
    reasons = "; ".join(certificate["reasons"])
    if certificate["verdict"] == "uncertified":
        logging.warning("%s: uncertified: %s.", output, reasons)
        return
    shares = [100 * certificate[f"identical_{search}"] for search in ("greedy", "beam")]
    difference = certificate["largest_score_difference_per_token"]
    scores = "not compared" if difference is None else f"within {difference:.2g} nats per token"
    message = "%s: %s in %s on %d sentences: %.1f %% of greedy and %.1f %% of beam translations identical, scores %s."
    verdict, precision = certificate["verdict"], certificate["precision"]
    logging.info(message, output, verdict, precision, certificate["sentences"], *shares, scores)
    if reasons:
        logging.error("%s: below the bars: %s; %s has the comparison", output, reasons, FILE_NAME)
        raise SystemExit(1)
