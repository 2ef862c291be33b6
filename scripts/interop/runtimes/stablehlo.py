"""StableHLO: translates with the program in the folder, which needs only JAX.

The docstring of the package explains the protocol.
"""

import importlib.metadata
import json
import pathlib
import subprocess
import sys

request = json.load(sys.stdin)
# The program reads and writes one sentence per line.
program = pathlib.Path(request["folder"], "translate.py")
text = "".join(f"{source}\n" for source in request["sources"])
process = subprocess.run(
    [sys.executable, program], input=text, stdout=subprocess.PIPE, encoding="utf-8", check=False
)
if process.returncode:
    # The error of the program is the last line of standard error.
    sys.exit(process.returncode)
answer = {
    "versions": {"jax": importlib.metadata.version("jax")},
    "greedy": None,
    "beam": process.stdout.split("\n")[:-1],
    "scores": None,
}
json.dump(answer, sys.stdout)
