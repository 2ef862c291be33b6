"""StableHLO: translates as the package's docstring says, with the search of the folder's program.

Needs only JAX.
"""

import importlib.metadata
import json
import pathlib
import subprocess
import sys

request = json.load(sys.stdin)
program = pathlib.Path(request["folder"], "translate.py")
text = "".join(f"{source}\n" for source in request["sources"])
done = subprocess.run(
    [sys.executable, program], input=text, stdout=subprocess.PIPE, encoding="utf-8", check=False
)
if done.returncode:
    sys.exit(done.returncode)  # its error is the last line of standard error
versions = {"jax": importlib.metadata.version("jax")}
answer = {
    "versions": versions,
    "greedy": None,
    "beam": done.stdout.split("\n")[:-1],
    "scores": None,
}
json.dump(answer, sys.stdout)
