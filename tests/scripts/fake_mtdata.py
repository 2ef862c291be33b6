"""Behaves as `python -m mtdata` 0.5.1 does: its options, its messages, and the files and links that
it leaves.
"""

import json
import os
import sys
import time
from pathlib import Path

CODES = {"en": "eng", "de": "deu", "fr": "fra", "eng": "eng", "deu": "deu"}
RECIPE = {
    "id": "tiny_ende",
    "langs": "eng-deu",
    "train": ["Tiny-web-1-eng-deu"],
    "dev": ["Tiny-news-1-deu-eng"],
    "test": ["Tiny-tests-1-eng-deu", "Tiny-tests-2-eng-deu"],
}


def print_codes(languages: list[str]) -> None:
    for code in languages:
        if code not in CODES:
            raise Exception(
                f"Unable to find ISO 639-3 code for {code!r}. Please run\n"
                "python -m mtdata.iso\nto know it"
            )
        print(CODES[code], "Language", sep="\t")


def get(arguments: list[str]) -> None:
    out = Path(arguments[arguments.index("-o") + 1])
    (out / "tests").mkdir(parents=True)
    print("20261123 08:00:00 INFO     Downloading", " " * 40, file=sys.stderr)
    if "SLOW" in os.environ:
        time.sleep(60)
    if "DAMAGED" in os.environ:
        print(
            "20261123 08:00:00 ERROR    Unable to add Tiny-web-1-eng-deu: Compressed file ended",
            file=sys.stderr,
        )
        raise EOFError("Compressed file ended")
    for language, word in (("eng", "sentence"), ("deu", "Satz")):
        (out / f"train.{language}").write_text(
            "".join(f"{word} {number}\n" for number in range(30))
        )
        (out / "tests" / f"Tiny-news-1-deu-eng.{language}").write_text(f"{word}\n" * 4)
        (out / f"dev.{language}").symlink_to(f"tests/Tiny-news-1-deu-eng.{language}")
        # mtdata numbers them in the order of a set
        for number, name in enumerate(reversed(RECIPE["test"]), 1):
            lines = 2 if language == os.environ.get("SHORT") else 3
            (out / "tests" / f"{name}.{language}").write_text(f"{word} of {name}\n" * lines)
            (out / f"test{number}.{language}").symlink_to(f"tests/{name}.{language}")
    signature = f"mtdata {' '.join(arguments[:-1])} <out-dir>\nmtdata version 0.5.1\n"
    (out / "mtdata.signature.txt").write_text(signature)


if __name__ == "__main__":
    module, *rest = sys.argv[2:]  # after -m
    if module == "mtdata.iso":
        print_codes(rest[1:])
    elif rest[0] == "list-recipe":
        print(json.dumps(RECIPE))
    else:
        get(rest[1:])
