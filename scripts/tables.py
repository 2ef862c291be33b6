"""Prints the tables of results in README.md and docs/ from records.

    python -m scripts.tables [--check]

Each table is written between its marks in its page. scripts/reporting/published.py lists the tables
with their pages and their records. --check writes nothing and fails if a table differs from its
records.
"""

import argparse

from scripts import markdown
from transformer.config import cli
from transformer.support.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    from scripts.reporting.published import TABLES

    for table in TABLES:
        text = table.make(table.records)
        if not arguments.check:
            markdown.publish(text, table.name, table.page)
        elif text != markdown.read_text(table.name, table.page):
            raise UserError(
                f"{table.page}: the table {table.name} differs from {table.records}; "
                "run python -m scripts.tables"
            )


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.tables", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; compare the tables")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
