"""Implementation of `transformer.translate`; transformer/translate.py defines its flags."""

import argparse
import io
import json
import select
import sys
import time
from collections.abc import Iterable, Iterator

import jax
from absl import logging

from transformer import files
from transformer.cache import enable_compilation_cache
from transformer.checkpoints import trained
from transformer.data.sources.lines import check_encoding, probable_encoding, strip_line_end
from transformer.decoding.replicas import Replicas
from transformer.decoding.translation import Translation
from transformer.decoding.translator import Translator
from transformer.errors import UserError
from transformer.training.objectives import OBJECTIVES
from transformer.workdir import split_names

CHUNK_LINES = 4096  # lines per device, translated together: more would fill batches better, but use more memory
PATIENCE = 0.02  # seconds in which a chunk waits for more lines: long enough for a fast writer to fill its pipe again
BLOCK_BYTES = 1 << 16  # read at once, as much as a pipe holds


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
    translator.log_cut_lines()


def translate_stream(
    stream: io.BufferedIOBase,
    translator: Translator,
    replicas: Replicas,
    arguments: argparse.Namespace,
    chunk_lines: int,
) -> Iterator[str]:
    """Yields the output of each chunk of lines."""
    write, first_line = as_jsonl if arguments.format == "jsonl" else as_text, 1
    for chunk in read_chunks(stream, chunk_lines):
        texts = list(decode_stream(chunk, first_line))
        found = translator.translate(replicas, texts, first_line, lambda count: None)
        yield "".join(write(text, best, arguments.n_best) for text, best in zip(texts, found, strict=True))
        first_line += len(chunk)


def read_chunks(stream: io.BufferedIOBase, chunk_lines: int) -> Iterator[list[bytes]]:
    """Yields the lines of a stream, `chunk_lines` at a time, or those that have come when no more input is ready.

    So a program that writes a line and waits for its translation gets it. Regular files are always ready.
    """
    lines, parts = [], []  # complete lines, and the parts of the next one
    while _is_ready(stream, None) and (block := stream.read1(BLOCK_BYTES)):
        if not lines:
            patient_until = time.monotonic() + PATIENCE
        first, *others = block.split(b"\n")
        parts.append(first)
        if others:
            lines += [b"".join(parts), *others[:-1]]
            parts = others[-1:]
        while len(lines) >= chunk_lines or (lines and not _is_ready(stream, patient_until - time.monotonic())):
            yield lines[:chunk_lines]
            del lines[:chunk_lines]
    if any(parts):
        lines.append(b"".join(parts))
    if lines:
        yield lines


def _is_ready(stream: io.BufferedIOBase, seconds: float | None) -> bool:
    """Waits until the stream has input or ends, at most so many seconds, and tells whether it does."""
    try:
        return bool(select.select([stream], [], [], seconds if seconds is None else max(seconds, 0.0))[0])
    except io.UnsupportedOperation:  # a stream in memory
        return True


def decode_stream(lines: Iterable[bytes], first_line: int = 1) -> Iterator[str]:
    """Yields the lines without their ends. Replaces bytes that are not UTF-8 by U+FFFD, with a warning."""
    for number, line in enumerate(lines, start=first_line):
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
