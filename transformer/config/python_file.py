"""Calling a function of a Python file that the user names: a config's or a sweep's."""

import importlib.util
import inspect
import traceback
from pathlib import Path
from typing import Any

from transformer.errors import UserError


def call(path: Path, function: str, arguments: tuple[str, ...], flag: str) -> Any:
    """What `function`, defined in the file at `path`, returns for `arguments`.

    Args:
      arguments: none, or what the user typed after the file's name and a colon.
      flag: with which the file was named; for errors.

    Raises:
      UserError: there is no such function, it takes other arguments, or running file or function fails.
    """
    spec = importlib.util.spec_from_file_location("python_file", path.resolve())
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise UserError(f"has no {function}()")
        try:
            inspect.signature(getattr(module, function)).bind(*arguments)
        except TypeError:
            wanted = "takes no argument" if arguments else f"needs an argument, {flag}=FILE.py:ARGUMENT"
            raise UserError(f"{function} of this file {wanted}") from None
        return getattr(module, function)(*arguments)
    except UserError as error:
        raise UserError(f"{flag}={path}{''.join(f':{argument}' for argument in arguments)}: {error}") from None
    except Exception as error:
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path.resolve())
        ]
        where = f"line {lines[-1]}: " if lines else ""
        raise UserError(f"{flag}={path}: {where}{type(error).__name__}: {error}") from error
