"""fxtranslate: decodes greedily in int8 with the Rust engine of that package.

The docstring of the package explains the protocol. A request also has `files`, as for
bergamot_translator.mjs.
"""

import importlib.metadata
import json
import pathlib
import sys

import fxtranslate

request = json.load(sys.stdin)
names = request["files"]


def read(name):
    return pathlib.Path(request["folder"], name).read_bytes()


engine = fxtranslate.Translator(
    model=read(names["model"]),
    src_vocab=read(names["vocabularies"][0]),
    trg_vocab=read(names["vocabularies"][-1]),
    shortlist=read(names["shortlist"]) if names["shortlist"] else None,
)
translations = [engine.translate(text) for text in request["sources"]]
answer = {
    "precision": "int8",
    "versions": {"fxtranslate": importlib.metadata.version("fxtranslate")},
    "greedy": translations,
    "beam": translations,
    "scores": None,
}
json.dump(answer, sys.stdout)
