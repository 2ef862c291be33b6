"""Translates a corpus in shards, on one machine or many. A killed job resumes at missing shards.

    python -m scripts.translate_corpus --workdir=DIR --source=FILES_OR_FOLDER --output=FOLDER
        [--format=parquet|text] [--n_best=N] [--shards=N]
        [--shard=I/N | [--ray=ADDRESS] [--workers=N]]
        [--source_language=CODE] [--target_language=CODE] [--decoding.KEY=VALUE ...]

Files are text, .gz or .parquet. Each shard becomes a file in --output, with translations, scores
and line numbers. Its bytes do not depend on the number of workers. A line that cannot be translated
is reported, and does not stop the job.

Ray shares the shards among --workers processes of this machine, or of the cluster at --ray.
--shard=2/8 needs no Ray: this process translates the second of eight parts, as a task of a Slurm
array does. docs/corpora.md explains both.
"""

import argparse
import json
import re
import time

from transformer.config import cli
from transformer.support import files


def main(arguments: argparse.Namespace) -> None:
    from scripts.corpora import ray_workers, shards, translator
    from transformer.decoding.strategies import check_n_best
    from transformer.support.cache import enable_compilation_cache

    start = time.perf_counter()
    paths = shards.find_files(arguments.source)
    # Ray forks processes, so it starts before JAX.
    if not arguments.shard:
        ray_workers.start(arguments.ray)
    flags = (arguments.workdir, arguments.checkpoint, arguments.average, arguments.overrides)
    models = translator.load(*flags)
    check_n_best(models.config.decoding, arguments.n_best)

    # Workers continue a folder only with the same request.
    request = translator.make_request(
        models,
        paths,
        arguments.n_best,
        format=arguments.format,
        column=arguments.column,
        shards=arguments.shards,
    )
    corpus = shards.open_shards(files.expand_user(arguments.output).absolute(), request)
    missing = corpus.missing(*(arguments.shard or (1, 1)))

    # This process translates, or the actors of Ray, which load the models themselves.
    if arguments.shard:
        enable_compilation_cache()
        reports = map(translator.Translator(models, corpus).translate, missing)
    else:
        reports = ray_workers.translate(
            flags, corpus, missing, arguments.workers, arguments.worker_gpus
        )

    totals = {"output": str(corpus.output), "shards": len(missing)}
    totals |= translator.add_up(reports, len(missing))
    totals["seconds"] = round(time.perf_counter() - start, 1)
    print(json.dumps(totals))


def part_of(text: str) -> tuple[int, int]:
    """Returns I and N of "I/N". Raises ArgumentTypeError unless 1 <= I <= N."""
    numbers = re.fullmatch(r"(\d+)/(\d+)", text)
    if not numbers or not 1 <= int(numbers[1]) <= int(numbers[2]):
        raise argparse.ArgumentTypeError(f"{text}: must be I/N with I from 1 to N")
    return int(numbers[1]), int(numbers[2])


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.translate_corpus", __doc__, overrides="decoding")
    parser.add_model_flags(languages=True)
    parser.add_argument(
        "--source",
        required=True,
        metavar="FILE,FILE,...|FOLDER",
        help="text, .gz or .parquet files",
    )
    parser.add_argument("--column", default="text", help="column of Parquet to translate (text)")
    parser.add_argument("--output", required=True, help="folder of the shards, new or to continue")
    parser.add_number("--n_best", 1, "translations of each line")
    parser.add_argument(
        "--format", choices=("parquet", "text"), default="parquet", help="output format (parquet)"
    )
    parser.add_number("--shards", None, "number of shards (one per 10,000 lines)")
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--shard", type=part_of, metavar="I/N", help="translate part I of N here, without Ray"
    )
    place.add_argument("--ray", help="address of a Ray cluster (starts one on this machine)")
    parser.add_number("--workers", 1, "processes of Ray")
    parser.add_number("--worker_gpus", 0, "GPUs of each", least=0)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
