"""Translates the lines of standard input to standard output, in order.

Each line is a sentence. A language model continues the lines.

python -m transformer.translate --workdir=DIR [--checkpoint=best|last|STEP] [--average=N]
    [--n_best=N] [--format=text|jsonl] [--confidence] [--glossary=FILE] [--COLUMN_column ...]
    [--source_language=CODE] [--target_language=CODE] [--decoding.KEY=VALUE ...]

text: a line of output for each line of input. With --n_best=N above 1: N lines of NUMBER, SCORE and
    TEXT, separated by tabs, best first; score and text are empty where the search found fewer
    texts.
jsonl: a JSON object in each line, with the source and its translations. docs/decoding.md
    explains the keys, and docs/confidence.md those of --confidence.

A COLUMN of the lines (prefix, required, banned) and a glossary control the output: see
docs/control.md. A line that cannot be translated is reported; its output is the output
for an empty line, and the exit code is 0.

Another program can write a line and wait for its translation. --decoding.batch_tokens=1 makes
single lines fast.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from absl import logging

from transformer.config import cli
from transformer.data.sources.lines import decode_lines, read_chunks, whole_documents
from transformer.support import files
from transformer.support.errors import UserError
from transformer.workdir import split_names

# Lines per device that are translated together. More lines fill batches better and use more memory.
CHUNK_LINES = 4096


def main(arguments: argparse.Namespace) -> None:
    # These imports take seconds, which --help should not.
    from transformer.checkpoints import loaded_models
    from transformer.checkpoints.calibration import read_calibration
    from transformer.decoding.confidence import estimate
    from transformer.decoding.control.arguments import read_columns, translate_lines
    from transformer.decoding.control.glossary import Glossary
    from transformer.decoding.strategies import check_n_best
    from transformer.decoding.target_forms import TARGET_FORMS
    from transformer.support.cache import enable_compilation_cache

    if arguments.confidence and arguments.format != "jsonl":
        raise UserError("--confidence: is printed with --format=jsonl only; give that flag too")
    interactive = sys.stdin.isatty()
    overrides = arguments.overrides
    if interactive:
        # A person waits for each line, so a batch has one row instead of many filler rows.
        overrides = [*overrides, ("decoding.batch_tokens", "1")]
    enable_compilation_cache()
    # Read before the model, so that a wrong file fails early.
    glossary = Glossary.read(arguments.glossary) if arguments.glossary else None
    models = loaded_models.load(
        split_names(arguments.workdir), arguments.checkpoint, arguments.average, overrides
    )
    loaded_models.check_translates(models.config, arguments.workdir)
    calibration = None
    if arguments.confidence:
        calibration = read_calibration(models.config, models.checkpoints)
    decoder, parameters = models.decoder()
    check_n_best(models.config.decoding, arguments.n_best)
    form = TARGET_FORMS[models.config.data.target_form]
    has_context = models.config.data.context > 0
    if interactive:
        logging.info(
            "Type one sentence a line; end %swith Ctrl-D.",
            "documents with an empty line, and " * has_context,
        )

    first_line = 1
    chunk_lines = 1 if interactive else CHUNK_LINES * len(decoder.devices)
    # typeshed gives this buffer a type without `read1`.
    chunks = read_chunks(sys.stdin.buffer, chunk_lines)  # type: ignore[arg-type]
    # The sentences of a document are context for each other.
    if has_context:
        chunks = whole_documents(chunks)
    for chunk in chunks:
        lines = decode_lines(chunk, first_line)
        texts, controls, errors = read_columns(lines, arguments.columns, glossary, first_line)
        texts = list(map(form.read_source, texts))
        translations = translate_lines(
            decoder, parameters, arguments.n_best, texts, controls, errors, first_line
        )
        confidences = [[]] * len(texts)
        if calibration:
            confidences = estimate(
                calibration, decoder, parameters, texts, translations, first_line
            )
        translations = form.show(texts, translations, first_line)
        # Bytes are written, since the terminal may have another encoding than UTF-8.
        for text, best, estimates in zip(texts, translations, confidences, strict=True):
            if arguments.format == "jsonl":
                output = as_jsonl(text, best, estimates)
            else:
                output = as_text(best, arguments.n_best)
            sys.stdout.buffer.write(output.encode())
        sys.stdout.buffer.flush()
        first_line += len(chunk)


def as_text(translations: Sequence[Any], n_best: int) -> str:
    if n_best == 1:
        return f"{translations[0].text}\n"
    columns = [f"{translation.score:.4f}\t{translation.text}" for translation in translations]
    # Scripts can rely on `n_best` lines for each sentence.
    columns += ["\t"] * (n_best - len(translations))
    return "".join(f"{number}\t{column}\n" for number, column in enumerate(columns, start=1))


def as_jsonl(source: str, translations: Sequence[Any], confidences: Sequence[Any] = ()) -> str:
    """Returns a line of JSON. `confidences` is empty, or has an item for each translation."""
    fields = [vars(translation) for translation in translations]
    if confidences:
        pairs = zip(fields, confidences, strict=True)
        fields = [values | confidence._asdict() for values, confidence in pairs]
    translations = files.six_digits(fields)
    return json.dumps({"source": source, "translations": translations}, ensure_ascii=False) + "\n"


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.translate", __doc__, overrides="decoding")
    parser.add_model_flags(languages=True)
    parser.add_number("--n_best", 1, "translations a line")
    parser.add_argument(
        "--format", choices=("text", "jsonl"), default="text", help="output format (text)"
    )
    parser.add_argument(
        "--confidence", action="store_true", help="add the confidence in translations and words"
    )
    parser.add_argument(
        "--glossary", metavar="FILE", help="a term, a tab and its translation in each line"
    )
    for name in ("prefix", "required", "banned"):
        parser.add_argument(
            f"--{name}_column",
            action="append_const",
            dest="columns",
            const=name,
            default=[],
            help="read a column more of each line",
        )
    return parser


def command() -> NoReturn:
    cli.run(make_parser(), main)


if __name__ == "__main__":
    command()
