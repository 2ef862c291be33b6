"""What a run would do and what it would cost, before it does it."""

from transformer.training.run import Run


def describe(run: Run) -> str:
    return ""
