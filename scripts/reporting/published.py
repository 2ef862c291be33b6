"""The tables of results in README.md and docs/ that are printed from records."""

import functools
import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts import markdown
from scripts.reporting import directions
from scripts.reporting.table import describe_device, make_table, mean_minutes
from scripts.reproduction import speedrun, table4, tables
from scripts.reproduction.rows import read_rows, read_table
from scripts.results.evaluations import Evaluation
from scripts.results.records import read_results
from scripts.results.systems import group_systems, mean_and_spread
from transformer.config.keys import flatten, format_value
from transformer.support.errors import UserError

SCORES = ("bleu_lowercase_tokenized", "bleu", "chrf")
OPTIMIZER_KEYS = ("optimizer.name", "optimizer.schedule", "optimizer.learning_rate")
CANDIDATE_KEYS = ("training.candidate_loss", "data.mixture", "training.likelihood_weight")
# Published scores of other work, with the columns of the table in README.md.
OTHER_WORK = ("Wu et al. 2021 (ACL), text only, as published", "41.02", "", "", "")


class PublishedTable(NamedTuple):
    """The text between the marks of `name` in a page, which `make` returns for the records."""

    name: str
    page: str
    records: Path
    make: Callable[[Path], str]


def make_results(records: Path) -> str:
    return make_table(read_results(records))


def make_summary(records: Path) -> str:
    """Returns the short table of README.md: the mean over seeds on the test split."""
    results = [evaluation for evaluation in read_results(records) if evaluation.split == "test"]
    systems = group_systems(results)
    if len(systems) != 1:
        raise UserError(f"{records}: has {len(systems)} systems on test; the summary has one")
    evaluations = systems[0].evaluations
    ours = f"this project, mean ± standard deviation of {len(evaluations)} seeds"
    minutes = (
        f"{mean_minutes(evaluations):.0f} minutes per run on {describe_device(evaluations[0])}"
    )
    header = (
        "test2016",
        "BLEU (lower-cased, tokenized)",
        "BLEU (sacreBLEU, cased)",
        "chrF",
        "training",
    )
    return markdown.table([header, (ours, *mean_scores(evaluations), minutes), OTHER_WORK])


def make_comparison(records: Path, keys: Sequence[str]) -> str:
    """Returns a row for each system and text, with the keys in which the systems differ."""
    rows = []
    for system in group_systems(read_results(records)):
        evaluations = system.evaluations
        values = flatten(evaluations[0].config)
        rows.append(
            (
                *(format_value(values[key]) for key in keys),
                evaluations[0].text,
                str(len(evaluations)),
                *mean_scores(evaluations),
                f"{mean_minutes(evaluations):.0f} min",
            )
        )
    return markdown.table([(*keys, "split", "seeds", *SCORES, "training"), *rows])


def make_searches(records: Path) -> str:
    """Returns a row for each search of the same models, with scores and seconds on each text."""
    names = ("bleu_lowercase_tokenized", "chrf")
    cells = {}  # of each text, by the flags of a search
    for system in group_systems(read_results(records)):
        run = flatten(system.evaluations[0].config)
        flags = " ".join(
            f"`{key.removeprefix('decoding.')}={format_value(value)}`"
            for key, value in system.differences.items()
            if key.startswith("decoding.") and value != run[key]
        )
        seconds = statistics.mean(each.result["seconds"] for each in system.evaluations)
        text_cells = cells.setdefault(flags, {})
        text_cells[system.evaluations[0].text] = [
            *mean_scores(system.evaluations, names),
            f"{seconds:.0f}",
        ]
    texts = sorted({text for row in cells.values() for text in row})
    header = ["decoding", *(f"{text}: {name}" for text in texts for name in (*names, "seconds"))]
    rows = [
        [flags, *itertools.chain(*(row[text] for text in texts))]
        for flags, row in sorted(cells.items())
    ]
    return markdown.table([header, *rows])


def mean_scores(evaluations: Sequence[Evaluation], names: Sequence[str] = SCORES) -> list[str]:
    return [
        mean_and_spread([evaluation.result[name] for evaluation in evaluations], ".1f")
        for name in names
    ]


def make_kinds(records: Path) -> str:
    """Returns the BLEU of systems on each text, and how much it is below that of the test split.

    Each folder in `records` has the records of one system, and its name.
    """
    bleu = {
        folder.name: {
            system.evaluations[0].text: [
                evaluation.result["bleu"] for evaluation in system.evaluations
            ]
            for system in group_systems(read_results(folder))
        }
        for folder in sorted(path for path in records.iterdir() if path.is_dir())
    }
    header = ["split", *itertools.chain(*((name, "loss") for name in bleu))]
    rows = []
    for text in sorted(set(itertools.chain(*bleu.values()))):
        row = [text]
        for scores in bleu.values():
            loss = statistics.mean(scores["test"]) - statistics.mean(scores[text])
            row += [mean_and_spread(scores[text], ".1f"), "" if text == "test" else f"{loss:.1f}"]
        rows.append(row)
    return markdown.table([header, *rows])


def make_directions(records: Path) -> str:
    """Returns the BLEU of one model of several languages in each direction."""
    evaluations = read_results(records)
    results = {tuple(each.languages.values()): each.result for each in evaluations}
    return directions.make_directions(results, "bleu", evaluations[0].config)


def make_table3(records: Path) -> str:
    return tables.make_text(*read_table(records, read_rows("mini", None, [])))


MULTI30K = Path("records/multi30k")
TABLES = (
    PublishedTable("summary", "README.md", MULTI30K, make_summary),
    PublishedTable("results", "docs/results.md", MULTI30K, make_results),
    PublishedTable("table3", "docs/results.md", Path("records/table3-mini"), make_table3),
    PublishedTable("table4", "docs/parsing.md", Path("records/table4"), table4.make_recorded_text),
    PublishedTable(
        "optimizers",
        "docs/training.md",
        Path("records/optimizers"),
        functools.partial(make_comparison, keys=OPTIMIZER_KEYS),
    ),
    PublishedTable(
        "bytes",
        "docs/data.md",
        Path("records/bytes"),
        functools.partial(make_comparison, keys=("tokenizer.kind", "batch.tokens")),
    ),
    PublishedTable(
        "pretrained",
        "docs/training.md",
        Path("records/pretrained"),
        functools.partial(make_comparison, keys=("training.init_from", "tokenizer.shared")),
    ),
    PublishedTable("kinds", "docs/noisy_text.md", Path("records/noisy"), make_kinds),
    PublishedTable(
        "candidates",
        "docs/sequence_training.md",
        Path("records/candidates"),
        functools.partial(make_comparison, keys=CANDIDATE_KEYS),
    ),
    PublishedTable("searches", "docs/decoding.md", Path("records/decoding"), make_searches),
    PublishedTable("verses", "docs/verses.md", Path("records/verses"), make_directions),
    PublishedTable(
        "verses_context",
        "docs/verses.md",
        Path("records/verses-en-de"),
        functools.partial(make_comparison, keys=("data.context",)),
    ),
    PublishedTable("speedrun", "docs/speedrun.md", Path("records/speedrun"), speedrun.make_table),
)
