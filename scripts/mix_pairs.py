"""Mixes real sentence pairs with back-translated ones (Sennrich et al. 2016) into a folder to train
on.

    python -m scripts.translate_corpus --workdir=REVERSE_RUN --source=mono.de --output=translated --shard=1/1
    python -m scripts.mix_pairs --pair=en-de --real=FOLDER --translated=translated --output=FOLDER [--ratio=N]

The reverse run translates text of the target language. Each of its sentences becomes a pair whose
source is the translation, after a tag that tells the model so (Caswell et al. 2019). Sentences
without a translation are left out, and so are those that were cut, whose translation is that of
their first tokens.
--ratio=2 takes at most two such pairs for each real one, the first of the corpus. The other splits are copied.
"""

import argparse
import itertools
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

from absl import logging

from scripts.get_data import parse_pair
from transformer.config import cli
from transformer.data.languages import base_code
from transformer.data.sources.lines import count_lines
from transformer.support import files
from transformer.support.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    from configs import base
    from scripts.datasets.folder import write_record
    from transformer.data.sources.text import TextSource

    pair = parse_pair(arguments.pair)
    if arguments.ratio is not None and not 0 < arguments.ratio < math.inf:
        raise UserError(f"--ratio={arguments.ratio}: must be above 0, and finite")
    folder = arguments.real
    split = arguments.split
    data = base.get_config().data
    data.update(
        path=str(folder), train_split=split, source_language=pair[0], target_language=pair[1]
    )
    try:
        real = TextSource.open(data, "train")
    except UserError as error:
        raise UserError(f"--real={folder} --split={split}: {error}") from error
    most = None if arguments.ratio is None else round(arguments.ratio * len(real))
    translated = itertools.islice(translated_pairs(arguments.translated, arguments.tag, pair), most)
    with files.new_folder(arguments.output) as output:
        with (
            (output / f"{split}.{pair[0]}").open("wb") as source,
            (output / f"{split}.{pair[1]}").open("wb") as target,
        ):
            added = -len(real)
            for texts in itertools.chain(real, translated):
                source.write(texts[0] + b"\n")
                target.write(texts[1] + b"\n")
                added += 1
        if not added:
            raise UserError(
                f"--translated={arguments.translated}: all sentences were cut or have no translation"
            )
        for path in other_splits(folder, pair, split):
            shutil.copyfile(path, output / path.name)
        facts = {"by": "mix_pairs", "real": len(real), "translated": added, "tag": arguments.tag}
        record = write_record(output, pair, facts)
    print(json.dumps(record))


def other_splits(folder: Path, pair: tuple[str, str], split: str) -> Iterator[Path]:
    """Yields the files of the other splits: those with equally many lines in both languages.

    Warns of others.
    """
    found = {}
    for path in sorted(folder.iterdir()):
        stem, _, language = path.name.removesuffix(".gz").rpartition(".")
        if language in pair and stem != split:
            found.setdefault(stem, {})[language] = path
    for stem, sides in found.items():
        if len(sides) == 2 and len(set(map(count_lines, sides.values()))) == 1:
            yield from sides.values()
        else:
            logging.warning("%s: %s is not parallel, and is left out.", folder, stem)


def translated_pairs(
    folder: Path, tag: str, pair: tuple[str, str]
) -> Iterator[tuple[bytes, bytes]]:
    """Yields (tag and best translation, text) of an output of translate_corpus.

    Raises UserError for a partial one, or one of another direction than from the target of `pair`
    to its source.
    """
    from scripts.corpora.plan import FILE_NAME, open_plan

    if not (folder / FILE_NAME).is_file():
        raise UserError(
            f"--translated={folder}: has no {FILE_NAME}; name an output of scripts.translate_corpus"
        )
    plan = open_plan(folder, {})
    # outputs of older commits do not name them
    back = plan.request.get("model", {}).get("languages") or pair[::-1]
    if [*map(base_code, back)] != [*map(base_code, pair[::-1])]:
        raise UserError(
            f"--translated={folder}: is from {back[0]} to {back[1]}; for {'-'.join(pair)}, translate text of {pair[1]} "
            f"into {pair[0]}"
        )
    if plan.request["format"] != "parquet":
        raise UserError(f"--translated={folder}: is text; translate again with --format=parquet")
    if missing := plan.missing(1, 1):
        raise UserError(
            f"--translated={folder}: {len(missing)} of {len(plan.shards)} shards are missing; run the command "
            "scripts.translate_corpus again, which makes them"
        )
    for text, (best, *_) in plan.translations():
        if best:
            yield f"{tag} {best}".lstrip().encode(), text.encode()


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.mix_pairs", __doc__)
    parser.add_argument(
        "--pair",
        required=True,
        metavar="SOURCE-TARGET",
        help="codes of the languages, such as en-de",
    )
    parser.add_argument(
        "--real", required=True, type=Path, help="the real pairs and other splits, STEM.LANGUAGE"
    )
    parser.add_argument("--split", default="train", help="the split to extend (train)")
    parser.add_argument(
        "--translated", required=True, type=Path, help="output of scripts.translate_corpus"
    )
    parser.add_argument("--output", required=True, type=Path, help="the new folder")
    parser.add_argument(
        "--tag", default="<BT>", help='first word of translated sources; "": none (<BT>)'
    )
    parser.add_argument("--ratio", type=float, help="most translated pairs for each real one (all)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
