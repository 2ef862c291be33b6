"""Makes a workdir of a model of another toolkit. All commands take it, and `training.init_from`
fine-tunes it.

    python -m scripts.import_model --from=FOLDER_OR_FILE --output=WORKDIR [--sentences=FILE]
        [--runtime=PYTHON] [--data.source_language=CODE] [--data.target_language=CODE]
        [--data.KEY=VALUE ...]

The format is recognized by the names of the files; docs/interop.md lists the formats. The languages
are needed where the files do not name them. --data.path=FOLDER --data.valid_split=STEM records
parallel text of the model's languages for the commands that read a validation or test split.

Some sentences are then translated here and by the other toolkit, with the Python of .venv-interop
(make interop) or
--runtime=PYTHON, and compared in WORKDIR/certificate.json: those of --sentences=FILE, of the validation split, or
bundled ones. If the results differ too much, the exit code is 1 and WORKDIR has a file BELOW-THE-BARS.txt.
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
    from scripts.interop import certificate, formats, workdirs
    from scripts.interop.sentences import read_sentences
    from transformer.config.loading import parse_overrides

    cache.enable_compilation_cache()
    output = Path(arguments.output)
    source = files.expanded(arguments.source)
    files.check_new(output)
    name = formats.recognise(source)
    entry = formats.FORMATS[name]
    python = runtimes.find_python(arguments.runtime, is_here=entry.has_own_search)
    sentences = read_sentences(arguments.sentences)
    model = entry.read(source)
    if any(None in getattr(side, "models", ()) for side in model.tokenizer.sides):
        logging.warning(
            "%s: has no SentencePiece models; texts must be pieces, separated by spaces.", source
        )
    model = model._replace(config=model.config | parse_overrides(arguments.overrides, "--"))
    if missing := [
        f"--data.{name}=CODE" for name in cli.LANGUAGES if f"data.{name}" not in model.config
    ]:
        raise UserError(
            f"--from={source}: its files do not name the languages; give {' '.join(missing)}"
        )
    origin = origin_of(name, source)
    with files.new_folder(output) as unfinished:
        workdirs.write(model, unfinished, origin)
        written = workdirs.from_workdir(unfinished, "best", 1)
        try:
            certified = certificate.certify(
                written, source, entry, python, sentences, quantization=None
            )
        except runtimes.CannotDecode as reason:  # the files are not ours to mend
            certified = certificate.uncertified(reason)
        certificate.write(certified, origin["files"], unfinished)
    certificate.conclude(certified, output)


def origin_of(name: str, source: Path) -> dict[str, Any]:
    """Returns the content of parent.json: the format, the sha256 of its files, and the text of a
    licence among them.
    """
    from scripts.interop import untrusted
    from scripts.interop.certificate import digests_in

    digests = digests_in(source)
    folder = source if source.is_dir() else source.parent
    paths = [folder / file for file in digests]
    licences = [
        path for path in paths if path.name.upper().startswith(LICENCES) and not path.is_symlink()
    ]
    text = untrusted.read_bytes(licences[0]).decode(errors="replace") if licences else None
    return {"format": name, "files": digests, "licence": text}


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
