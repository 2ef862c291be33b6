"""The site of the documentation: `make docs` writes it to site/."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

project = "Transformer"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
html_theme = "furo"
html_title = "Transformer"
# Every heading has an anchor, such as #fine-tune, as on code-hosting sites.
myst_heading_anchors = 3
autodoc_member_order = "bysource"
default_role = "literal"  # docstrings write code as in Markdown: `name`


def make_lists(app, what, name, obj, options, lines: list[str]) -> None:
    """Turns the lines "name: description" of a docstring into a list."""
    entry = re.compile(r"\w+: ")
    in_list = False
    result = []
    for line in lines:
        if entry.match(line):
            if not in_list:
                result.append("")
            in_list = True
            result.append(f"- {line}")
        elif in_list and line.startswith(" "):
            result.append(f"  {line.strip()}")
        else:
            if in_list and line:
                result.append("")
            in_list = False
            result.append(line)
    lines[:] = result


def setup(app) -> None:
    app.connect("autodoc-process-docstring", make_lists)
