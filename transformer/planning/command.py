"""`transformer.train --plan --device`: the report for devices that are not there."""

import json
from collections.abc import Callable

from transformer import files
from transformer.config_types import Config
from transformer.planning import report
from transformer.planning.compilers import find_devices
from transformer.planning.devices import parse_target
from transformer.planning.estimate import estimate, require_fit
from transformer.planning.lengths import WMT, AssumedCorpus, parse_statistics


def plan_for_device(
    config: Config, device: str, lengths: str | None, is_json: bool, show: Callable[[str], None] = print
) -> None:
    """Shows the report of a run on the devices that `device` names. Data, workdir and devices need not exist.

    Raises UserError if the flags cannot be used, the compiler is not installed, the mesh does not match the devices,
    or, after the report, if the step does not fit.
    """
    target = parse_target(device)
    statistics = WMT if lengths is None else parse_statistics(lengths)
    corpus = AssumedCorpus(statistics, config.data.max_length)
    size = config.tokenizer.vocab_size
    found = estimate(config, target, find_devices(target), corpus, (size, size))
    assumed = f"assumed: {statistics}; vocabulary of {size:,}"
    if is_json:
        show(json.dumps(files.six_digits(report.to_json(config, target, found, assumed))))
    else:
        for line in report.to_lines(config, target, found, assumed):
            show(line)
    require_fit(config, target, found)
