"""Gets translation data: corpora of OPUS and WMT by mtdata, Parquet files, gettext catalogues,
treebanks, TFDS datasets, or perturbed copies of other data.

    python -m scripts.get_data --pair=en-de --recipe=ID --output=DIR
    python -m scripts.get_data --pair=en-is --train=ID,ID --validation=ID --test=ID --output=DIR
    python -m scripts.get_data --pair=en-de --hf=FOLDER --output=DIR
    python -m scripts.get_data --pair=en-de --gettext=FILE_OR_FOLDER,... --output=DIR
    python -m scripts.get_data --trees=PATH,PATH --validation=PATH --test=PATH --output=DIR
        [--leaves=XX|tags]
    python -m scripts.get_data --pair=en-de --perturb=FOLDER --kind=KIND --output=DIR
        [--share=P] [--seed=N]
    python -m scripts.get_data --tfds=wmt14_translate/de-en --output=DIR [--archives=DIR]

All but the last write train, validation and test as STEM.LANGUAGE, for `data.source=text`, with
the record `data.json`. Runs on the data copy this record. A PATH of trees is a file in the format
of the Penn Treebank, or a folder with files `*.mrg`: see docs/parsing.md. --perturb copies all
splits of a folder as people write them, for example with typos: see docs/noisy_text.md. The last
one prepares array_record, for `data.source=tfds` with `data.path=DIR`. The record goes to standard
output. If a command fails, it leaves no data, except that --tfds keeps archives that were
downloaded completely.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from scripts.datasets import catalogues, mtdata, perturbed
from scripts.datasets.folder import SPLITS, LanguagePair
from transformer.config import cli
from transformer.data.sources.lines import parse_number
from transformer.support import files
from transformer.support.errors import UserError

# Flags of one source of data, by the flag of that source.
OPTIONS = {
    "leaves": "trees",
    "kind": "perturb",
    "share": "perturb",
    "seed": "perturb",
    "archives": "tfds",
}


def main(arguments: argparse.Namespace) -> None:
    datasets = {}  # of mtdata
    for split in SPLITS:
        names = getattr(arguments, split)
        if names and not arguments.train and not arguments.trees:
            raise UserError(f"--{split}={names}: is for --train and --trees; leave it out")
        if names:
            datasets[split] = names.split(",")
    for name, source in OPTIONS.items():
        value = getattr(arguments, name)
        if value is not None and not getattr(arguments, source):
            raise UserError(f"--{name}={value}: is for --{source}; leave it out")
    output = arguments.output

    # A dataset of TFDS is not parallel text: it has no pair and no record in a file.
    if arguments.tfds:
        from scripts.datasets import tfds

        print(json.dumps(tfds.prepare(arguments.tfds, output, arguments.archives)))
        return

    if arguments.trees:
        print(json.dumps(make_trees(arguments)))
        return

    pair = parse_pair(arguments.pair)
    files.check_new(output)  # before mtdata starts, which takes seconds
    if arguments.hf:
        from scripts.datasets import parquet  # imports a package of the extra `data`

        record = parquet.get_parquet(pair, arguments.hf, output)
    elif arguments.perturb:
        record = make_perturbed(pair, arguments)
    elif arguments.gettext is not None:
        record = catalogues.get_catalogues(pair, arguments.gettext, output)
    elif arguments.recipe:
        record = mtdata.get_recipe(arguments.mtdata, pair, arguments.recipe, output)
    else:
        record = mtdata.get_datasets(arguments.mtdata, pair, datasets, output)
    print(json.dumps(record))


def make_trees(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the record of the folder that --trees makes."""
    from scripts.datasets import treebank

    return treebank.get_trees(
        parse_pair(arguments.pair or "en-trees"),
        treebank_paths(arguments),
        arguments.leaves or "XX",
        arguments.output,
    )


def make_perturbed(pair: LanguagePair, arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the record of the folder that --perturb makes."""
    if arguments.kind is None:
        raise UserError(f"--perturb={arguments.perturb}: needs --kind={'|'.join(perturbed.KINDS)}")
    share = 1.0 if arguments.share is None else parse_number(arguments.share)
    if not 0 < share <= 1:
        raise UserError(f"--share={arguments.share}: must be a number above 0 and at most 1")
    return perturbed.get_perturbed(
        pair, arguments.perturb, arguments.kind, arguments.seed or 0, share, arguments.output
    )


def treebank_paths(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Returns the paths that --trees, --validation and --test name, by split."""
    sources = {"train": arguments.trees, "validation": arguments.validation, "test": arguments.test}
    return {split: names.split(",") for split, names in sources.items() if names}


def parse_pair(pair: str | None) -> LanguagePair:
    if pair is None:
        raise UserError(
            "--pair=SOURCE-TARGET: is missing; name the languages, such as --pair=en-de"
        )
    # Such as en, deu or pt-BR.
    code = r"([a-z]{2,3}\w*(?:-[A-Z0-9]\w*)*)"
    match = re.fullmatch(f"{code}-{code}", pair)
    if not match or match[1] == match[2]:
        raise UserError(
            f"--pair={pair}: must be the codes of two languages, such as en-de or en-pt-BR"
        )
    return match[1], match[2]


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.get_data", __doc__)
    parser.add_argument(
        "--pair", metavar="SOURCE-TARGET", help="codes of the two languages, such as en-de"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--recipe", help="a recipe of mtdata, such as vaswani_etal_2017_ende")
    source.add_argument(
        "--train",
        metavar="ID,ID",
        help="datasets of mtdata to train on, such as OPUS-gnome-v1-eng-kan",
    )
    source.add_argument(
        "--hf", type=Path, help="a folder of Parquet files, as on Hugging Face's hub"
    )
    source.add_argument(
        "--gettext",
        metavar="PATH,PATH",
        help=".po and .mo files, and folders of them; the messages are in the source language",
    )
    source.add_argument(
        "--trees", metavar="PATH,PATH", help="treebanks to train on: files, or folders of *.mrg"
    )
    source.add_argument("--perturb", type=Path, help="a folder of text to copy and perturb")
    source.add_argument("--tfds", metavar="NAME/CONFIG", help="a translation dataset of TFDS")
    for split, purpose in (("validation", "validate"), ("test", "test")):
        parser.add_argument(
            f"--{split}", metavar="ID,ID", help=f"--train, --trees: datasets to {purpose} on"
        )
    parser.add_argument(
        "--leaves", choices=("XX", "tags"), help="--trees: leaves of the linearized trees (XX)"
    )
    parser.add_argument("--kind", choices=perturbed.KINDS, help="--perturb: what changes")
    parser.add_argument("--share", help="--perturb: the fraction of the pairs to perturb (1)")
    parser.add_number("--seed", None, "--perturb: the seed of the random numbers (0)", least=0)
    parser.add_argument(
        "--archives", type=Path, help="--tfds: folder of archives that need no download"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="the new folder; --tfds: TFDS's data_dir"
    )
    parser.add_argument("--mtdata", default=str(mtdata.PYTHON), help="Python that has mtdata")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
