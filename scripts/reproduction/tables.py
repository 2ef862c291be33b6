"""The measured Table 3 and its claims as Markdown."""

import math
from collections.abc import Callable, Mapping, Sequence

from configs.table3 import ROWS
from scripts import markdown
from scripts.reproduction.claims import CLAIMS, LEVEL, MARGINS, Verdict, judge
from scripts.reproduction.rows import RowResult, count_parameters, scores_by_row
from scripts.results.systems import describe_search, mean_and_spread
from transformer.config.keys import flatten
from transformer.config.types import Config, head_widths

SETTINGS = {  # the columns of the paper's Table 3, and positions, which its row (E) changes
    "N": "model.num_layers",
    "d_model": "model.d_model",
    "d_ff": "model.d_ff",
    "h": "model.num_heads",
    "d_k": "model.d_k",
    "d_v": "model.d_v",
    "P_drop": "model.dropout",
    "eps_ls": "training.label_smoothing",
    "positions": "model.positions",
    "steps": "training.steps",
}
CLAIM_HEADER = ("claim", "measure", "paper", "here", "p", "holds")
SCORES = ("PPL", "BLEU", "params x10^6", "seeds", "paper: PPL", "BLEU", "params")


def make_text(configs: Mapping[str, Config], results: Sequence[RowResult], planned: int) -> str:
    """Returns the table of rows, the conditions of the measurement, and the table of claims.

    `planned` is the number of complete and incomplete runs.
    """
    perplexities = scores_by_row(results, "perplexity")
    bleus = scores_by_row(results, "bleu")
    rows = [("row", *SETTINGS, *SCORES)]
    for name in configs:
        rows.append(_row(name, configs, perplexities.get(name, []), bleus.get(name, [])))
    text = markdown.table(rows, [_conditions(configs["base"], results, planned)])
    # Without results, the table has only the rows and the paper's scores.
    if results:
        claims = [CLAIM_HEADER, *_claims(perplexities, bleus)]
        text += "\n" + markdown.table(claims, [_explanation(bleus)])
    return text


def _row(
    name: str, configs: Mapping[str, Config], perplexities: Sequence[float], bleus: Sequence[float]
) -> tuple[str, ...]:
    """Returns the cells of a row. As in the paper, only base has settings that are not changed."""
    base = _settings(configs["base"])
    settings = []
    for column, value in _settings(configs[name]).items():
        is_shown = name == "base" or value != base[column]
        settings.append(str(value) if is_shown else "")

    paper = ROWS[name]
    return (
        name,
        *settings,
        mean_and_spread(perplexities) if perplexities else "",
        mean_and_spread(bleus) if bleus else "",
        f"{count_parameters(configs[name]) / 1e6:.2f}",
        str(len(bleus) or ""),
        f"{paper.perplexity:.2f}",
        f"{paper.bleu:.1f}",
        "" if paper.millions is None else str(paper.millions),
    )


def _settings(config: Config) -> dict[str, object]:
    flat = flatten(config)
    values = {column: flat[key] for column, key in SETTINGS.items()}
    # Widths of 0 in a config mean d_model / h.
    values["d_k"], values["d_v"] = head_widths(config.model)
    return values


def _conditions(base: Config, results: Sequence[RowResult], planned: int) -> str:
    training_config = base.training
    count = training_config.eval_sentences
    sentences = f"The first {count}" if count else "All"
    # Validation decodes with its own beam size, and without a shortlist.
    search = describe_search(
        {**base.decoding.to_dict(), "beam_size": training_config.eval_beam_size, "shortlist": 0}
    )

    minutes = sum(result.seconds for result in results) / 60
    languages = f"{base.data.source_language}-{base.data.target_language}"
    return (
        f"{len(results)} of {planned} runs, {minutes:.0f} minutes of training. "
        f"{base.data.name}, {languages}. {sentences} "
        f"sentences of the validation split at its best step, {search}, no averaging; "
        "BLEU is sacreBLEU's, the paper's is tokenized. ± is the standard deviation over seeds."
    )


def _claims(
    perplexities: Mapping[str, Sequence[float]], bleus: Mapping[str, Sequence[float]]
) -> list[tuple[str, ...]]:
    rows = []
    for claim in CLAIMS:
        bleu = judge(claim, "bleu", bleus)
        perplexity = judge(claim, "perplexity", perplexities)
        # The runs lack rows that the claim needs.
        if bleu is None:
            continue
        rows.append((claim.statement, "BLEU", *_verdict(bleu, lambda value: f"{value:+.2f}")))
        # Differences of logarithms are shown as relative changes.
        rows.append(("", "PPL", *_verdict(perplexity, lambda log: f"{math.expm1(log):+.1%}")))
    return rows


def _verdict(verdict: Verdict, show: Callable[[float], str]) -> tuple[str, ...]:
    contrast = verdict.contrast
    value = show(contrast.value)
    p_value = ""
    # With one seed for each row, there is neither an error nor a test.
    if contrast.freedom:
        value += f" ± {show(contrast.error).lstrip('+')}"
        p_value = f"{verdict.p_value:.3f}"
    return show(verdict.paper), value, p_value, verdict.holds


def _explanation(bleus: Mapping[str, Sequence[float]]) -> str:
    # The degrees of freedom of `claims.estimate`.
    freedom = sum(len(values) - 1 for values in bleus.values())
    margin = math.expm1(MARGINS["perplexity"])
    return (
        f"A claim holds (yes) if its p-value is below {LEVEL}, is refuted (no) if that of the "
        "opposite claim is, and is unclear otherwise. p-values are one-sided, from Student's t "
        f"with the variance over seeds pooled over all rows ({freedom} degrees of freedom), "
        'without correction for multiple tests. "As good" means within '
        f"{MARGINS['bleu']} BLEU and {margin:.0%} of the perplexity, by two one-sided tests. "
        "± is the standard error."
    )
