"""Calling a function of a Python file that the user names: a config's `get_config` or a sweep's `get_sweep`."""

import importlib.util
import traceback
from pathlib import Path
from typing import Any

from transformer.errors import UserError


def call(path: Path, function: str, *arguments: Any) -> Any:
    """Returns the result of calling `function`, which the file at `path` defines, with `arguments`.

    Raises:
      UserError: the file does not define the function, or the file or the function raises an exception.
    """
    spec = importlib.util.spec_from_file_location("python_file", path.resolve())
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise UserError(f"does not define {function}()")
        return getattr(module, function)(*arguments)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path.resolve())]
        line = f"line {frames[-1].lineno}: " if frames else ""
        raise UserError(f"{path}: {line}{type(error).__name__}: {error}") from error
