"""The tutorial as one program: its Python blocks in order, each followed by the text that it
prints.

`python -m tests.tutorial` runs the program and writes its output, its pictures and the notebook
into docs/.
"""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

PAGE = Path("docs/tutorial.md")
NOTEBOOK = Path("docs/tutorial.ipynb")
PICTURES = Path("docs/tutorial")  # the program writes them here, from the repository root
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)

SETUP = """
# The program runs in the root of the repository. In Colab, clone the repository first, and then:
# %cd FOLDER
# %pip install -q -r requirements.txt
import os
import sys
from pathlib import Path

folders = (Path.cwd(), *Path.cwd().parents)
root = next((folder for folder in folders if (folder / "transformer" / "api.py").is_file()), None)
if root is None:
    raise SystemExit("Clone the repository and change to its folder; then run this cell again.")
os.chdir(root)
sys.path.insert(0, str(root))
""".strip()


def shown(text: str) -> list[str]:
    """Returns the output that the page shows for each Python block; "" where it shows none."""
    return [block["output"] or "" for block in BLOCK.finditer(text)]


def printed(text: str) -> list[str]:
    """Runs the program in the current folder. Returns the output of each block."""
    names: dict = {"__name__": "tutorial"}
    outputs = []
    for block in BLOCK.finditer(text):
        # Empty lines before the code give tracebacks the line numbers of the page.
        above = "\n" * (text.count("\n", 0, block.start()) + 1)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(above + block["code"], str(PAGE), "exec"), names)
        outputs.append(output.getvalue())
    return outputs


def with_outputs(text: str, outputs: list[str]) -> str:
    """Returns the page with these outputs below its blocks."""
    remaining = iter(outputs)

    def show(block: re.Match) -> str:
        output = next(remaining)
        return f"```python\n{block['code']}```\n" + (f"\n```text\n{output}```\n" if output else "")

    return BLOCK.sub(show, text)


def notebook(text: str) -> str:
    """Returns the page as a Jupyter notebook, with the outputs that it shows.

    The first cell finds the project.
    """
    cells, end = [_cell("code", SETUP)], 0
    for block in BLOCK.finditer(text):
        if prose := text[end : block.start()].strip():
            cells.append(_cell("markdown", prose))
        cells.append(_cell("code", block["code"].rstrip("\n"), block["output"] or ""))
        end = block.end()
    cells.append(_cell("markdown", text[end:].strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    content = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, source: str, output: str = "") -> dict[str, Any]:
    cell = {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
    if kind == "markdown":
        return cell
    stream = {"name": "stdout", "output_type": "stream", "text": output.splitlines(keepends=True)}
    return cell | {"execution_count": None, "outputs": [stream] if output else []}


def update() -> None:
    PICTURES.mkdir(exist_ok=True)
    text = PAGE.read_text(encoding="utf-8")
    text = with_outputs(text, printed(text))
    PAGE.write_text(text, encoding="utf-8")
    NOTEBOOK.write_text(notebook(text), encoding="utf-8")


if __name__ == "__main__":
    update()
