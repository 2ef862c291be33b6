"""Implementation of `transformer.translate`; transformer/translate.py defines its flags."""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from io import BufferedIOBase

import jax
from absl import logging

from transformer import files
from transformer.checkpoints import trained
from transformer.compilation_cache import enable_compilation_cache
from transformer.data.sources.lines import check_encoding, probable_encoding, strip_line_end
from transformer.decoding.replicas import Replicas
from transformer.decoding.translation import Translation
from transformer.decoding.translator import Translator
from transformer.errors import UserError
from transformer.training.objectives import OBJECTIVES
from transformer.workdir import split_names

CHUNK_LINES = 4096  # lines per device, translated together: more would fill batches better, but use more memory


def main(arguments: argparse.Namespace) -> None:
    if arguments.n_best < 1:
        raise UserError(f"--n_best={arguments.n_best}: must be at least 1")
    interactive = sys.stdin.isatty()
    # A person waits for each line, so a batch has one row instead of many filler rows.
    overrides = [*arguments.overrides, ("decoding.batch_tokens", "1")] if interactive else arguments.overrides
    enable_compilation_cache()
    models = trained.load(split_names(arguments.workdir), arguments.checkpoint, arguments.average, overrides)
    objective = models.config.training.objective
    if not OBJECTIVES[objective].generates_text:
        raise UserError(f"--workdir={arguments.workdir}: a model of training.objective={objective} generates no text")
    devices = jax.local_devices()
    translator = Translator(
        models.graphs, models.tokenizer, models.config.decoding, arguments.n_best, devices, models.shortlist
    )
    replicas = Replicas(models.graphs, models.parameters, devices[0])
    if interactive:
        logging.info("Type one sentence a line; end with Ctrl-D.")
    chunk_lines = 1 if interactive else CHUNK_LINES * len(devices)
    for output in translate_stream(sys.stdin.buffer, translator, replicas, arguments, chunk_lines):
        sys.stdout.buffer.write(output.encode())
        sys.stdout.buffer.flush()


def translate_stream(
    stream: BufferedIOBase, translator: Translator, replicas: Replicas, arguments: argparse.Namespace, chunk_lines: int
) -> Iterator[str]:
    """Yields the output of each chunk of lines."""
    lines, first_line = decode_stream(stream), 1
    while chunk := list(itertools.islice(lines, chunk_lines)):
        found = translator.translate(replicas, chunk, first_line, lambda count: None)
        write = as_jsonl if arguments.format == "jsonl" else as_text
        yield "".join(write(text, best, arguments.n_best) for text, best in zip(chunk, found, strict=True))
        first_line += len(chunk)


def decode_stream(stream: BufferedIOBase) -> Iterator[str]:
    """Yields the lines of a stream without their ends. Replaces bytes that are not UTF-8 by U+FFFD, with a warning."""
    for number, line in enumerate(iter(stream.readline, b""), start=1):
        if number == 1:
            _warn_about_encoding(line)
        line = strip_line_end(line, first=number == 1)
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            logging.warning(
                "Line %d is not UTF-8 (byte %d): such bytes become U+FFFD; %s.",
                *(number, error.start + 1, probable_encoding(line)),
            )
            yield line.decode(errors="replace")


def _warn_about_encoding(first_line: bytes) -> None:
    try:
        check_encoding(first_line, "standard input")
    except UserError as error:  # each line still gets its line of output
        logging.warning("%s", error)


def as_text(source: str, translations: list[Translation], n_best: int) -> str:
    if n_best == 1:
        return f"{translations[0].text}\n"
    columns = [f"{each.score:.4f}\t{each.text}" for each in translations] + ["\t"] * (n_best - len(translations))
    return "".join(f"{number}\t{text}\n" for number, text in enumerate(columns, start=1))


def as_jsonl(source: str, translations: list[Translation], n_best: int) -> str:
    translations = files.six_digits([vars(each) for each in translations])
    return json.dumps({"source": source, "translations": translations}, ensure_ascii=False) + "\n"
