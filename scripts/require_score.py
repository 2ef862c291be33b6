"""Passes on the JSON line of transformer.evaluate and fails if a score in it is too low.

Example:   python -m transformer.evaluate --workdir=runs/quickstart | python -m scripts.require_score exact_match 0.99
"""

import json
import sys

from transformer import command
from transformer.errors import UserError

PARSER = command.Parser("scripts.require_score", __doc__)
PARSER.add_argument("score", help="its name in the JSON, such as bleu")
PARSER.add_argument("least", type=float, help="the least value that passes")


def main(arguments) -> None:
    text = sys.stdin.read()
    sys.stdout.write(text)
    try:
        value = json.loads(text)[arguments.score]
    except (ValueError, KeyError) as error:
        raise UserError(f"standard input: no JSON with {arguments.score} in it ({error})") from None
    if value < arguments.least:
        raise UserError(f"{arguments.score} is {value}, must be at least {arguments.least}")


if __name__ == "__main__":
    command.run(PARSER, main)
