"""The matrix of scores of a model of several languages."""

import itertools
from collections.abc import Mapping
from typing import Any

from scripts import markdown
from scripts.results.sentence_scores import metric_of
from transformer.config.types import Config
from transformer.data.sources.mixture import listed_corpora
from transformer.support.errors import UserError


def make_directions(
    results: Mapping[tuple[str, str], Mapping[str, Any]], metric: str, config: Config
) -> str:
    """Returns a Markdown table with a row for each source and a column for each target language.

    `results` has the evaluation of each direction, a source and a target language. A score has half
    the width of its interval, if the evaluation has it. A star marks directions that the run of
    `config` was not trained on. Raises UserError if an evaluation does not have the metric.
    """
    corpora = [corpus.data for corpus in listed_corpora(config.data)]
    trained = {(data.source_language, data.target_language) for data in corpora}
    cells = {}
    form = metric_of(metric).format
    for pair, result in results.items():
        if metric not in result:
            raise UserError(
                f"--metric={metric}: the evaluation of {'-'.join(pair)} does not have it; "
                "name another metric"
            )
        cells[pair] = f"{result[metric]:{form}}"
        if f"{metric}_interval" in result:
            low, high = result[f"{metric}_interval"]
            cells[pair] += f" ± {(high - low) / 2:{form}}"
        if pair not in trained:
            cells[pair] += " *"
    languages = list(dict.fromkeys(itertools.chain(*results)))
    rows = [
        (source, *(cells.get((source, target), "") for target in languages)) for source in languages
    ]
    return markdown.table([("from", *(f"to {target}" for target in languages)), *rows])
