"""The report's page: one HTML file with its style, its script and the Vega libraries."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import jinja2
import vl_convert
from absl import logging

from scripts.reporting import attention_and_beams, scores, sections, sentences
from scripts.results.runs import read_runs
from transformer.data.sources.lines import counted

FOLDER = Path(__file__).parent / "templates"
NAMED = 3  # runs in the title, at most


def make_page(
    paths: Sequence[Path], split: str | None, data: str | None, texts: Sequence[str], count: int
) -> str:
    """Returns the page on the runs in `paths`. Raises UserError if one of them is not a workdir.

    It compares evaluations of `split`, of the run `data` if given. None: the split that most runs
    were evaluated on, or valid if several tie. It shows attention for the source sentences `texts`,
    and for `count` sentences of the split.
    """
    runs = read_runs(paths, "WORKDIR")
    compared = scores.compare(runs, split, data)
    sources = [*texts, *sentences.most_different_sources(compared, count)]
    logging.info("Reading %s with each model.", counted(len(sources), "sentence"))
    inspected = attention_and_beams.inspect(runs, compared.chosen, sources)
    parts = [
        sections.runs_section(runs, compared.systems),
        scores.section(compared),
        sections.curve_section(runs),
        sections.settings_section(runs),
        sentences.section(compared),
        attention_and_beams.attention_section(*inspected),
        attention_and_beams.beam_section(*inspected),
    ]
    named = ", ".join(run.label for run in runs) if len(runs) <= NAMED else f"{len(runs)} runs"
    return render(f"Report on {named}", parts)


def render(title: str, parts: Sequence[sections.Section]) -> str:
    """Returns the page.

    Its policy lets browsers run only the page's own scripts, and load nothing.
    """
    scripts = [
        _script(vl_convert.javascript_bundle()),
        _script((FOLDER / "page.js").read_text("utf-8")),
    ]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    data = {"charts": {name: chart for section in parts for name, chart in section.charts.items()}}
    for section in parts:
        data |= section.data
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
        # numbers that are not finite become null
        data=json.loads(json.dumps(data), parse_constant=lambda _: None),
        scripts=scripts,
    )


def _script(text: str) -> str:
    """Returns a script that defines no global names but those it assigns to `window`, and cannot
    end its element.
    """
    return "(() => {\n" + text.replace("</script", "<\\/script") + "\n})();"


def _hash(script: str) -> str:
    """Returns the source expression with which a content-security policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
