"""The report's page: one HTML file with its style, its script and the Vega libraries."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import jinja2
import vl_convert
from absl import logging

from scripts.reporting import attention_and_beams, confidence, scores, sections, sentences, trees
from scripts.results.runs import read_runs
from transformer.data.sources.lines import count_noun

FOLDER = Path(__file__).parent / "templates"
MAX_NAMED = 3  # runs in the title


def make_page(
    paths: Sequence[Path],
    split: str | None,
    data: str | None,
    texts: Sequence[str],
    count: int,
    add_scores: scores.AddScores = list,
) -> str:
    """Returns the page on the runs in `paths`. Raises UserError if a path is not a workdir.

    Args:
      split: the split whose evaluations are compared. None: the split on which most runs were
        evaluated, or valid if several tie.
      data: the run whose data has the split. None: each run's own data.
      texts: source sentences whose attention is shown.
      count: the number of sentences of the split whose attention is shown too.
      add_scores: returns evaluations with the scores of other programs.
    """
    runs = read_runs(paths, "WORKDIR")
    compared = scores.compare(runs, split, data, add_scores)
    sources = [*texts, *sentences.most_different_sources(compared, count)]
    logging.info("Reading %s with each model.", count_noun(len(sources), "sentence"))
    # This loads the models one after another, which takes most of the time.
    inspected = attention_and_beams.inspect(runs, compared.evaluations, sources)
    parts = [
        sections.runs_section(runs, compared.systems),
        scores.section(compared),
        *confidence.confidence_sections(runs),
        sections.curve_section(runs),
        sections.settings_section(runs),
        sentences.section(compared),
        *trees.tree_sections(compared),
        attention_and_beams.attention_section(*inspected),
        attention_and_beams.beam_section(*inspected),
    ]
    subject = f"{len(runs)} runs"
    if len(runs) <= MAX_NAMED:
        subject = ", ".join(run.label for run in runs)
    return render(f"Report on {subject}", parts)


def render(title: str, parts: Sequence[sections.Section]) -> str:
    """Returns the page as HTML.

    Its policy allows a browser to run only the page's own scripts, and to load nothing.
    """
    # The script of the page uses the Vega libraries of the first one.
    scripts = [
        _script(vl_convert.javascript_bundle()),
        _script((FOLDER / "page.js").read_text("utf-8")),
    ]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    # The page's script reads the charts and other values from one JSON element.
    charts = {}
    data = {"charts": charts}
    for section in parts:
        charts.update(section.charts)
        data.update(section.data)
    # Templates escape all text, since names and sentences may contain markup.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template("page.html").render(
        title=title,
        sections=parts,
        policy=policy,
        style=(FOLDER / "page.css").read_text("utf-8"),
        # Numbers that are not finite become null.
        data=json.loads(json.dumps(data), parse_constant=lambda _: None),
        scripts=scripts,
    )


def _script(text: str) -> str:
    """Returns the text of an inline script.

    It defines no global names except on `window`, and it cannot end its element.
    """
    return "(() => {\n" + text.replace("</script", "<\\/script") + "\n})();"


def _hash(script: str) -> str:
    """Returns the expression with which a content-security policy allows a script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
