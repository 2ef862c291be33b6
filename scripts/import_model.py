"""Makes a workdir of a model that another toolkit trained.

    python -m scripts.import_model --from=FOLDER_OR_FILE --output=WORKDIR [--sentences=FILE]
        [--runtime=PYTHON] [--data.source_language=CODE] [--data.target_language=CODE]
        [--data.KEY=VALUE ...]

All commands take the workdir, and `training.init_from` fine-tunes its model. The names of the files
tell the format; docs/interop.md lists the formats. The languages are needed if the files do not
name them. --data.path=FOLDER --data.valid_split=STEM records parallel text of the model's
languages, for the commands that read a validation or test split.

The command then translates some sentences here and with the other toolkit, and compares the results
in WORKDIR/certificate.json. The other toolkit runs in .venv-interop (make interop), or in the
Python of --runtime=PYTHON. The sentences are the lines of --sentences=FILE, the validation split,
or bundled ones. If the results differ too much, the exit code is 1 and WORKDIR has a file
BELOW-THE-BARS.txt.
"""

import argparse
from pathlib import Path
from typing import Any

from absl import logging

from scripts.interop import runtimes
from transformer.config import cli
from transformer.support import cache, files
from transformer.support.errors import UserError

LICENCES = ("LICENSE", "LICENCE", "COPYING")


def main(arguments: argparse.Namespace) -> None:
    from scripts.interop import certificate, formats, model_card, workdirs
    from scripts.interop.sentences import read_sentences
    from transformer.config.keys import freeze
    from transformer.config.loading import parse_overrides

    cache.enable_compilation_cache()
    # Wrong flags are errors before the model is read.
    output = Path(arguments.output)
    source = files.expand_user(arguments.source)
    files.check_new(output)
    name = formats.recognise(source)
    entry = formats.FORMATS[name]
    python = runtimes.find_python(arguments.runtime, is_here=entry.has_own_search)
    sentences = read_sentences(arguments.sentences)

    overrides = parse_overrides(arguments.overrides, "--")
    model = entry.read(source)
    # Without a SentencePiece model, a vocabulary of pieces cannot segment text.
    if any(None in getattr(side, "models", ()) for side in model.tokenizer.sides):
        logging.warning(
            "%s: has no SentencePiece models; texts must be pieces, separated by spaces.", source
        )
    languages = [(model.config | overrides).get(f"data.{key}", "") for key in cli.LANGUAGES]
    direction = model.directions.get("-".join(languages), {})
    model = model._replace(config=model.config | direction | overrides)
    missing = [f"--data.{key}=CODE" for key in cli.LANGUAGES if f"data.{key}" not in model.config]
    if missing:
        raise UserError(
            f"--from={source}: its files do not name the languages; give {' '.join(missing)}"
        )

    origin = origin_of(name, source)
    with files.new_folder(output) as folder:
        workdirs.write(model, folder, origin)
        # The certificate is for the model that the files of the workdir contain.
        model = workdirs.from_workdir(folder, "best", 1)
        try:
            result = certificate.certify(model, source, entry, python, sentences, quantization=None)
        except runtimes.CannotDecode as reason:
            # The toolkit fails on files that this command cannot repair.
            result = certificate.uncertified(reason)
        certificate.write(result, origin["files"], folder)
        model_card.write(folder, model_card.of_import(freeze(model.config), origin, result))
    certificate.conclude(result, output)


def origin_of(name: str, source: Path) -> dict[str, Any]:
    """Returns the content of parent.json.

    It has the name of the format, the sha256 of each file, the text of a licence file, and the
    metadata of a model card.
    """
    from scripts.interop import model_card, untrusted
    from scripts.interop.certificate import digests_in

    digests = digests_in(source)
    folder = source if source.is_dir() else source.parent
    licence = None
    for file in digests:
        path = folder / file
        # A link may lead to a private file of the user.
        if path.name.upper().startswith(LICENCES) and not path.is_symlink():
            licence = untrusted.read_bytes(path).decode(errors="replace")
            break
    metadata = model_card.read_metadata(folder)
    return {"format": name, "files": digests, "licence": licence, "metadata": metadata}


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.import_model", __doc__, overrides="data")
    parser.add_argument(
        "--from", dest="source", required=True, metavar="PATH", help="file or folder of the model"
    )
    parser.add_argument("--output", required=True, help="the new workdir")
    runtimes.add_flags(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
