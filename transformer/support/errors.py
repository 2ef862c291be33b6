"""The exception for errors that the user can correct, and the errors that it replaces."""

import contextlib
from collections.abc import Iterator, Sequence

# Errors of code that parses a damaged file, or a file with values of other types than expected.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
# Errors of a file that is missing, not readable or damaged.
UNREADABLE = (OSError, *MALFORMED)


class UserError(ValueError):
    """Raised for unusable input.

    The message names the key or file, the value received, and the allowed values.
    """


def first_of(items: Sequence[str], limit: int, separator: str = "; ") -> str:
    """Joins the first items for a message, with the number of omitted ones."""
    text = separator.join(items[:limit])
    if len(items) > limit:
        text += f" and {len(items) - limit} more"
    return text


def is_out_of_memory(error: BaseException) -> bool:
    """True if a device has too little memory."""
    # Accelerators say RESOURCE_EXHAUSTED; CPUs say INTERNAL: Out of memory.
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
