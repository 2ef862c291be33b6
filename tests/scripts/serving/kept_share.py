"""The share of 100 lines whose spans a translation keeps: URLs, placeholders, tags and emoji.

python -m tests.scripts.serving.kept_share WORKDIR [STEP_OR_NAME [AVERAGE]] prints the number of
lines with all spans, as often as in the source, by `model.translate` and by `kept.translate`. The
lines that lack spans go to standard error.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import transformer
from scripts.serving.kept import translate
from transformer.support.cache import enable_compilation_cache


def read_lines() -> list[tuple[str, list[str]]]:
    """Returns 100 texts with their spans, which were marked by hand."""
    content = Path(__file__).with_name("kept_lines.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in content.splitlines()]
    return [(text, spans) for text, *spans in rows]


def count_kept(lines: Sequence[tuple[str, list[str]]], translations: Sequence[str]) -> int:
    kept = 0
    for (text, spans), translation in zip(lines, translations, strict=True):
        lacking = [span for span in spans if translation.count(span) != text.count(span)]
        kept += not lacking
        if lacking:
            print(f"{text!r} -> {translation!r} lacks {lacking}", file=sys.stderr)
    return kept


def main(workdir: str, checkpoint: str = "best", average: str = "1") -> None:
    enable_compilation_cache()
    model = transformer.load(workdir, checkpoint, int(average))
    lines = read_lines()
    texts = [text for text, _ in lines]
    plain = [best.text for (best,) in model.translate(texts)]
    print("model.translate", count_kept(lines, plain), "of", len(lines))
    print("kept.translate", count_kept(lines, translate(model, texts)), "of", len(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
