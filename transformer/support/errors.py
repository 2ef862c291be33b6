"""The exception for errors that the user can correct, and errors of files and devices that become
one.
"""

import contextlib
from collections.abc import Iterator, Sequence

# Raised by code that parses a damaged file, or that finds values of other types in it than it
# expects.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
UNREADABLE = (OSError, *MALFORMED)


class UserError(ValueError):
    """Raised for unusable input.

    The message names the key or file, the value received, and the allowed values.
    """


def first_of(items: Sequence[str], limit: int, separator: str = "; ") -> str:
    """Joins the first items for a message, with the number of omitted ones."""
    others = len(items) - limit
    return separator.join(items[:limit]) + (f" and {others} more" if others > 0 else "")


def is_out_of_memory(error: BaseException) -> bool:
    """Tells whether a device has too little memory: accelerators say RESOURCE_EXHAUSTED, CPUs
    INTERNAL.
    """
    message = str(error)
    is_full = "RESOURCE_EXHAUSTED" in message or "Out of memory" in message
    return type(error).__name__ == "JaxRuntimeError" and is_full


@contextlib.contextmanager
def memory_advice(advice: str) -> Iterator[None]:
    """Raises UserError with the advice if a device runs out of memory in the block."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"out of device memory; {advice}") from error
