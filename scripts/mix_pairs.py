"""Mixes real sentence pairs with back-translated ones into a folder to train on.

    python -m scripts.translate_corpus --workdir=REVERSE_RUN --source=mono.de
        --output=translated --shard=1/1
    python -m scripts.mix_pairs --pair=en-de --real=FOLDER --translated=translated
        --output=FOLDER [--ratio=N]

The reverse run translates text of the target language (Sennrich et al. 2016). Each of its sentences
becomes a pair: the target is the sentence, and the source is the translation, after a tag that
tells the model so (Caswell et al. 2019). Sentences without a translation are left out. Sentences
that were cut are left out too, because only their first tokens were translated.

--ratio=2 takes at most two such pairs for each real one, the first of the corpus. The other splits
are copied.
"""

import argparse
import itertools
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

from absl import logging

from scripts.datasets.folder import LanguagePair, write_record
from scripts.get_data import parse_pair
from transformer.config import cli
from transformer.data.languages import base_code
from transformer.data.sources.lines import count_lines
from transformer.support import files
from transformer.support.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    from configs import base
    from transformer.data.sources.text import TextSource

    pair = parse_pair(arguments.pair)
    ratio = arguments.ratio
    if ratio is not None and not 0 < ratio < math.inf:
        raise UserError(f"--ratio={ratio}: must be above 0, and finite")
    folder = arguments.real
    split = arguments.split

    # Real pairs are read as a run with `data.source=text` reads them.
    data_config = base.get_config().data
    data_config.update(
        path=str(folder), train_split=split, source_language=pair[0], target_language=pair[1]
    )
    try:
        real = TextSource.open(data_config, "train")
    except UserError as error:
        raise UserError(f"--real={folder} --split={split}: {error}") from error
    limit = None if ratio is None else round(ratio * len(real))
    if limit == 0:
        raise UserError(f"--ratio={ratio}: takes no pair beside {len(real)} real ones; raise it")
    translated = translated_pairs(arguments.translated, arguments.tag, pair)

    # The folder appears once it is complete.
    with files.new_folder(arguments.output) as output:
        count = 0
        with (
            (output / f"{split}.{pair[0]}").open("wb") as source,
            (output / f"{split}.{pair[1]}").open("wb") as target,
        ):
            # Real pairs first. Translations are read as they are written, and stop at the limit.
            for texts in itertools.chain(real, itertools.islice(translated, limit)):
                source.write(texts[0] + b"\n")
                target.write(texts[1] + b"\n")
                count += 1
        added = count - len(real)
        if not added:
            raise UserError(
                f"--translated={arguments.translated}: all sentences were cut "
                "or have no translation"
            )
        for path in other_splits(folder, pair, split):
            shutil.copyfile(path, output / path.name)
        facts = {"by": "mix_pairs", "real": len(real), "translated": added, "tag": arguments.tag}
        record = write_record(output, pair, facts)
    print(json.dumps(record))


def other_splits(folder: Path, pair: LanguagePair, split: str) -> Iterator[Path]:
    """Yields the files of the other splits, which have equally many lines in both languages.

    Warns of files without such a counterpart.
    """
    # The files of each stem by language.
    stems = {}
    for path in sorted(folder.iterdir()):
        stem, _, language = path.name.removesuffix(".gz").rpartition(".")
        if language in pair and stem != split:
            stems.setdefault(stem, {})[language] = path
    for stem, sides in stems.items():
        if len(sides) == 2 and len(set(map(count_lines, sides.values()))) == 1:
            yield from sides.values()
        else:
            logging.warning("%s: %s is not parallel, and is left out.", folder, stem)


def translated_pairs(folder: Path, tag: str, pair: LanguagePair) -> Iterator[tuple[bytes, bytes]]:
    """Yields (tag and best translation, text) of an output of translate_corpus.

    Raises UserError if the output is incomplete, or was not translated from the target language of
    `pair` to its source language.
    """
    from scripts.corpora.shards import FILE_NAME, read_shards

    if not (folder / FILE_NAME).is_file():
        raise UserError(
            f"--translated={folder}: has no {FILE_NAME}; name an output of scripts.translate_corpus"
        )
    corpus = read_shards(folder)
    # Outputs of older commits do not name their languages.
    direction = corpus.request.get("model", {}).get("languages") or pair[::-1]
    # Regional variants count as the same language: pt-BR text can extend a corpus of pt.
    if [*map(base_code, direction)] != [*map(base_code, pair[::-1])]:
        raise UserError(
            f"--translated={folder}: is from {direction[0]} to {direction[1]}; "
            f"for {'-'.join(pair)}, translate text of {pair[1]} into {pair[0]}"
        )
    if corpus.request["format"] != "parquet":
        raise UserError(f"--translated={folder}: is text; translate again with --format=parquet")
    missing = corpus.missing(1, 1)
    if missing:
        raise UserError(
            f"--translated={folder}: {len(missing)} of {len(corpus.shards)} shards are missing; "
            "run the command scripts.translate_corpus again, which makes them"
        )

    # Translations are empty for sentences that were cut or not translated.
    for text, (best, *_) in corpus.translations():
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
