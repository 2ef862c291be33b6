"""The tutorial as one program: its Python blocks in order, each followed by the text that it prints.

`python -m tests.tutorial` runs the program and writes its output and its pictures into docs/.
"""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path("docs/tutorial.md")
PICTURES = Path("docs/tutorial")  # the program writes them here, from the repository root
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


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


def update() -> None:
    PICTURES.mkdir(exist_ok=True)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_outputs(text, printed(text)), encoding="utf-8")


if __name__ == "__main__":
    update()
