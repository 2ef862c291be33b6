"""Kills a training run repeatedly, and verifies that its results are those of an uninterrupted run.

    python -m scripts.verify_resume --config=configs/quickstart.py --workdir=DIR --kills=20

Trains the config once without interruption, and again with SIGKILL at random moments. The kills aim at validation, the
writing of checkpoints, preparation and training in turn. Each comes 1 ms to 10 s after the start of such a phase, with
log-uniform delays, or at the end of the phase if that is earlier. The script compares digests of the last checkpoint's
parameters, optimizer state and progress, and of the record without timings. The exit code is 2 if anything differs.
"""

import argparse
from collections import Counter
from pathlib import Path

from transformer import cli
from transformer.config import loading
from transformer.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    from scripts.killed_training import Training, kill_repeatedly

    if arguments.kills < 1:
        raise UserError(f"--kills={arguments.kills}: must be at least 1")
    overrides = [f"--config.{key}={value}" for key, value in arguments.overrides]
    flags = (f"--config={arguments.config}", *overrides)
    config = loading.load_file(arguments.config, arguments.overrides)
    if config.training.eval_every % config.training.log_every:
        raise UserError(
            f"config.training.eval_every={config.training.eval_every}: must be a multiple of "
            f"config.training.log_every={config.training.log_every}, whose lines show that a validation has begun"
        )
    folder = Path(arguments.workdir)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--workdir={folder}: must be a new or empty folder")
    uninterrupted = Training(folder / "uninterrupted", config, flags)
    uninterrupted.finish()
    expected = uninterrupted.digests()
    print_digests("without a kill", expected)
    kills, results = Counter(), []
    while kills.total() < arguments.kills:
        killed = Training(folder / f"killed-{len(results)}", config, flags)
        kill_repeatedly(killed, arguments.kills, kills)
        results.append(killed.digests())
        print_digests(f"after {kills.total()} kills", results[-1])
    print("killed while", ", ".join(f"{name}: {count}" for name, count in kills.items()), flush=True)
    if any(digests != expected for digests in results):
        raise UserError("the killed run differs from the uninterrupted one; compare the digests above")
    print(f"{arguments.kills} kills left no trace", flush=True)


def print_digests(name: str, digests: dict[str, str]) -> None:
    print("  ".join([f"{name:15}", *(f"{item} {digest}" for item, digest in digests.items())]), flush=True)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.verify_resume", __doc__, overrides="config")
    parser.add_argument(
        "--config", required=True, metavar="FILE.py[:ARG]", help="the configuration; it should save checkpoints often"
    )
    parser.add_argument("--workdir", required=True, metavar="DIR", help="a new folder for the runs")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="number of kills (20)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
