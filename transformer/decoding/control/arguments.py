"""Texts, phrases and glossaries from arguments in Python, columns of lines, and requests."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from transformer.decoding.batches import Replicas
from transformer.decoding.control.control import Control
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.control.glossary import Glossary
from transformer.decoding.translation import Translations, encode
from transformer.support.errors import UserError

LINE_BREAKS = str.maketrans("\r\n", "  ")


def check_text(text: Any, name: str) -> str:
    """Returns the text with spaces for line breaks.

    Raises UserError, which has the name, unless the text is a str in Unicode.
    """
    if not isinstance(text, str):
        advice = "; decode it" if isinstance(text, bytes) else ""
        raise UserError(f"{name}={text!r:.60}: must be a str{advice}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name}: is not UTF-8, as it has half a surrogate pair at {error.start}; remove it"
        ) from None
    return text.translate(LINE_BREAKS)


def check_texts(texts: Any, name: str, kind: str = "strings") -> list[str]:
    items = check_items(texts, name, kind)
    return [check_text(text, f"{name}[{i}]") for i, text in enumerate(items)]


def check_items(items: Any, name: str, kind: str) -> list[Any]:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise UserError(
            f"{name}={items!r:.60}: must be a list of {kind}; put a single one in brackets"
        )
    return list(items)


def check_required(phrases: Any, name: str) -> list[list[str]]:
    """Returns the alternatives of each phrase of a text. A str is a phrase without alternatives."""
    phrases = check_items(phrases, name, "phrases")
    phrases = [[phrase] if isinstance(phrase, str) else phrase for phrase in phrases]
    checked = [check_texts(phrase, f"{name}[{i}]") for i, phrase in enumerate(phrases)]
    if not all(checked):
        raise UserError(f"{name}={phrases!r:.60}: has a phrase without alternatives; remove it")
    return checked


def check_glossary(glossary: Any) -> Glossary:
    """Returns the glossary of a dict from terms to translations, or to lists of alternatives."""
    if not isinstance(glossary, Mapping):
        raise UserError(
            f"glossary={glossary!r:.60}: must be a dict from terms to their translations"
        )
    entries = []
    for term, translations in glossary.items():
        name = f"glossary[{term!r:.60}]"
        term = check_text(term, name)
        if isinstance(translations, str):
            translations = [translations]
        entries.append((name, term, check_texts(translations, name, "translations")))
    return Glossary(entries)


# The fields of `Control`, and their checks.
CHECKS = {
    "prefix": check_text,
    "required": check_required,
    "banned": check_texts,
}


def check_controls(
    texts: Sequence[str],
    columns: Mapping[str, Any],
    glossary: Glossary | None = None,
    first_line: int = 1,
) -> list[Control]:
    """Returns the control of each text.

    The columns, by the names of `CHECKS`, are None or have an item for each text.
    """
    # The fields of each text's control.
    rows = [{} for _ in texts]
    for name, items in columns.items():
        if items is None:
            continue
        items = check_items(items, name, "one item for each text")
        if len(items) != len(rows):
            raise UserError(
                f"{name}: has {len(items)} items, must have {len(rows)}, one for each text"
            )
        for i, item in enumerate(items):
            rows[i][name] = CHECKS[name](item, f"line {first_line + i}: {name}")
    if glossary is not None:
        for row, text in zip(rows, texts, strict=True):
            row["required"] = glossary.required(text, row.get("required", ()))
    return [Control(**row) for row in rows]


def read_columns(
    lines: Iterable[str], names: Sequence[str], glossary: Glossary | None, first_line: int
) -> tuple[list[str], list[Control], dict[int, UserError]]:
    """Returns the sources of lines, their controls, and the errors of controls by line number.

    `names` are the names of the columns after the source. A missing column is empty. Columns of
    phrases are JSON, with the form of the arguments of `Model.translate`. A line with a wrong
    column has an error and no control.
    """
    texts = []
    controls = []
    errors = {}
    for number, line in enumerate(lines, start=first_line):
        # Missing columns are empty cells.
        text, *cells = [*line.split("\t", len(names)), *[""] * len(names)]
        texts.append(text)
        try:
            columns = {
                name: [_parse(cell, name, number)] for name, cell in zip(names, cells, strict=False)
            }
            controls += check_controls([text], columns, glossary, number)
        except UserError as error:
            errors[number] = error
            controls.append(Control())
    return texts, controls, errors


def translate_lines(
    decoder: ControlledDecoder,
    parameters: Replicas,
    n_best: int,
    texts: Sequence[str],
    controls: Sequence[Control],
    errors: dict[int, UserError],
    first_line: int,
) -> Translations:
    """Returns the translations of lines. A line with an error has those of an empty text.

    `errors`, by line number, are the errors of `read_columns`. Other errors are lines that cannot
    be encoded, and controls that no output can obey. Logs a warning of each. Raises UserError for
    an error that is not of a line.
    """
    texts = list(texts)
    controls = list(controls)
    for line in errors:
        texts[line - first_line] = ""
        controls[line - first_line] = Control()
    try:
        translations = decoder.translate(parameters, texts, n_best, first_line, controls=controls)
    except UserError:
        # It is not the error of a line if the strategy takes no controls.
        if any(map(any, controls)):
            decoder.control.check_takes_controls()

        # Each line by itself, to find the lines with errors.
        line_errors = {}
        for line, (text, control) in enumerate(zip(texts, controls, strict=True), first_line):
            try:
                tokens = encode(decoder.tokenizer.encoders[0], f"line {line}", text)
                tokens = tokens[: decoder.decoding_config.max_source_length]
                decoder.control.encode([control], [tokens], line)
            except UserError as error:
                line_errors[line] = error
        if not line_errors:
            raise
        errors = errors | line_errors
        return translate_lines(decoder, parameters, n_best, texts, controls, errors, first_line)
    for line in sorted(errors):
        logging.warning("Not translated: %s.", errors[line])
    return translations


def _parse(cell: str, name: str, line: int) -> Any:
    try:
        return cell if name == "prefix" else json.loads(cell or "[]")
    except (ValueError, RecursionError):
        advice = 'must be a list of phrases in JSON, such as ["a phrase"]'
        raise UserError(f"line {line}: {name}={cell!r:.60}: {advice}") from None
