"""`transformer.train --plan --device`: the report for devices that are not there."""

import json
from pathlib import Path

from absl import logging

from transformer import files
from transformer.config_types import Config
from transformer.data.corpus import corpus
from transformer.data.corpus.corpus import Corpus
from transformer.data.tokenizers import tokenizer
from transformer.planning import report
from transformer.planning.compilers import find_devices
from transformer.planning.devices import parse_target
from transformer.planning.estimate import estimate, require_fit
from transformer.planning.lengths import WMT, AssumedCorpus, parse_statistics
from transformer.workdir import open_existing


def plan_for_device(config: Config, device: str, lengths: str | None, workdir: str | None, is_json: bool) -> None:
    """Prints the report of a run on the devices that `device` names. They need not be there.

    The lengths are those of the run in `workdir`; without one, neither data nor tokenizer are needed.

    Raises UserError if the flags cannot be used, the compiler is not installed, the mesh does not match the devices,
    or, after the report, if the step does not fit.
    """
    target = parse_target(device)
    devices = find_devices(target)
    data, vocab_sizes, description = assume(config, lengths) if workdir is None else read(config, Path(workdir))
    found = estimate(config, target, devices, data, vocab_sizes)
    if is_json:
        print(json.dumps(files.six_digits(report.to_json(config, target, found, description))))
    else:
        for line in report.to_lines(config, target, found, description):
            print(line)
    require_fit(config, target, found)


def assume(config: Config, lengths: str | None) -> tuple[Corpus, tuple[int, int], str]:
    """Returns a corpus of stated lengths, the sizes of its vocabularies, and a description of both."""
    if config.tokenizer.subword_sampling > 0:
        logging.warning(
            "The plan assumes the best segmentation, but subword sampling lengthens sentences. The data of a run "
            "(--workdir) include that."
        )
    statistics, size = WMT if lengths is None else parse_statistics(lengths), config.tokenizer.vocab_size
    data = AssumedCorpus(statistics, config.data)
    return data, (size, size), f"assumed: {statistics}; vocabulary of {size:,}"


def read(config: Config, workdir: Path) -> tuple[Corpus, tuple[int, int], str]:
    """Returns the same for the data of an existing run. Raises UserError if there is no such run, or no data."""
    open_existing(workdir)
    vocabulary = tokenizer.prepare(config, workdir)
    data = corpus.prepare(config, vocabulary, "train")
    sides = zip(("source", "target"), data.lengths.mean(axis=0), strict=True)
    means = " and ".join(f"{mean:.1f} {side}" for side, mean in sides if mean)
    lengths = f"{len(data):,} {data.unit} with means of {means} tokens"
    sizes = " and ".join(f"{size:,}" for size in sorted(set(vocabulary.vocab_sizes)))
    return data, vocabulary.vocab_sizes, f"of {workdir}: {lengths}; vocabulary of {sizes}"
