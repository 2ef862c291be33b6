"""The compilers for accelerators, where they are installed."""

import json
import os
import subprocess
import sys
from typing import Any

from transformer.planning import compilers as planning_compilers


def compilers() -> bool:
    modules = [name for names in planning_compilers.MODULES.values() for name in names]
    return all(map(planning_compilers._is_installed, modules))


def plan(*argv: str) -> dict[str, Any]:
    """Returns the JSON of `transformer.train` with these flags, in a process that has not started JAX."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "transformer.train", *argv]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
