"""Writes the model of a workdir in the format of another toolkit.

    python -m scripts.export --workdir=DIR --format=NAME --output=FOLDER [--quantization=NAME]
        [--checkpoint=best|last|STEP] [--average=N] [--sentences=FILE] [--runtime=PYTHON]
        [--engine=FOLDER] [--decoding.KEY=VALUE ...]

docs/interop.md lists the formats and their limits. A model that a format cannot express is an
error.

The command then translates some sentences here and with the other toolkit, and compares the results
in FOLDER/certificate.json. The other toolkit runs in .venv-interop (make interop), or in the Python
of --runtime=PYTHON. The sentences are the lines of --sentences=FILE, the validation split, or
bundled ones. If the results differ too much, the exit code is 1 and FOLDER has a file
BELOW-THE-BARS.txt.

--format=bergamot and --format=web also measure the model on the sentences of the file or of the
validation split. --format=web writes a page that translates in the browser, with the engine of the
npm package @browsermt/bergamot-translator. npm installs the package, or --engine=FOLDER names its
folder.
"""

import argparse
from pathlib import Path

from absl import logging

from scripts.interop import runtimes
from transformer.config import cli
from transformer.support import cache, files
from transformer.support.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    from scripts.interop import certificate, engines, formats, model_card, web, workdirs
    from scripts.interop.sentences import read_sentences

    cache.enable_compilation_cache()
    # Wrong flags are errors before the model is loaded.
    output = Path(arguments.output)
    files.check_new(output)
    writers = {name: entry for name, entry in formats.FORMATS.items() if entry.write is not None}
    if arguments.format not in writers:
        raise UserError(f"--format={arguments.format}: must be {', '.join(writers)}")
    entry = writers[arguments.format]
    quantization = arguments.quantization
    if quantization not in (None, *entry.quantizations):
        allowed = ", ".join(entry.quantizations) or f"left out with --format={arguments.format}"
        raise UserError(f"--quantization={quantization}: must be {allowed}")
    python = runtimes.find_python(arguments.runtime, is_here=entry.has_own_search)
    if arguments.engine and entry.engine_folder is None:
        raise UserError(f"--engine={arguments.engine}: is for --format=bergamot and --format=web")
    worker = web.find_worker(arguments.engine)
    sentences = read_sentences(arguments.sentences)

    model = workdirs.from_workdir(
        Path(arguments.workdir), arguments.checkpoint, arguments.average, arguments.overrides
    )
    tag = model.tokenizer.source_tag
    if tag:
        logging.warning("Texts for the exported model must begin with %s.", tag)
    with files.new_folder(output) as folder:
        given_worker = worker if arguments.engine or worker.exists() else None
        entry.write(model, folder, quantization, python, sentences, given_worker)
        # The command fails if the toolkit cannot decode files that were written here.
        if entry.engine_folder is None:
            result = certificate.certify(model, folder, entry, python, sentences, quantization)
        else:
            # A page has its own engine.
            page_worker = folder / web.ENGINE
            worker = page_worker if page_worker.exists() else worker
            result = engines.certify(model, folder / entry.engine_folder, python, sentences, worker)
        certificate.write(result, certificate.digests_in(folder), folder)
        model_card.write(folder, model_card.of_export(arguments, model.settings, result))
    certificate.conclude(result, output)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.export", __doc__, overrides="decoding")
    parser.add_model_flags(ensemble=False)
    parser.add_argument("--format", required=True, help="bergamot, ctranslate2, web, ...")
    parser.add_argument("--output", required=True, help="the new folder")
    parser.add_argument("--quantization", help="type of the weights, such as int8 (float32)")
    runtimes.add_flags(parser)
    parser.add_argument(
        "--engine",
        metavar="FOLDER",
        help="folder of the npm package @browsermt/bergamot-translator",
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
