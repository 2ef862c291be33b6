"""Translation data from the catalogues of GNU gettext: `.po` and `.mo` files."""

import contextlib
import gettext
import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from scripts.datasets.folder import LanguagePair, write_record
from transformer.data.languages import base_code
from transformer.support import files
from transformer.support.errors import UserError

HELD_OUT_FRACTION = 0.1  # of the pairs, for validation and as many for test
MAX_HELD_OUT = 1000  # pairs in each of these splits, approximately

# A message has the text and perhaps its plural, and the translation or its plural forms. The first
# message has the text "", and the header of the catalogue as translation.
Message = tuple[list[str], list[str]]

# A line of a .po file that is not a comment: a keyword and strings, or strings that continue.
_STRING = r'"((?:[^"\\]|\\.)*)"'
_LINE = re.compile(rf"(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)?\s*((?:{_STRING}\s*)+)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}  # an escaped " is a "
# The byte order of a .mo file by its first bytes.
_BYTE_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}


def get_catalogues(pair: LanguagePair, names: str, output: Path) -> dict[str, Any]:
    """Writes the messages of catalogues as parallel text, and returns the record of the folder.

    Args:
      pair: the language of the messages, and the language of their translations.
      names: files, and folders of files, separated by commas.
      output: the new folder.

    Raises UserError if a catalogue is missing, damaged or in another language, or if no pair is
    left.
    """
    paths = []
    for name in filter(None, names.split(",")):
        paths += find_catalogues(files.expand_user(name), pair)
    dropped = Counter()
    pairs = {}  # an ordered set: its keys
    for path in paths:
        for texts in read_pairs(path, pair):
            if texts in pairs:
                dropped["duplicate"] += 1
            elif not all(texts):
                dropped["untranslated or fuzzy"] += 1
            elif texts[0] == texts[1]:
                dropped["equal to the source"] += 1
            else:
                pairs[texts] = True
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) or "none"
    if not pairs:
        raise UserError(
            f"--gettext={names}: no pair is left (dropped: {reasons}); name catalogues that are "
            f"translated into {pair[1]}"
        )
    logging.info("Dropped: %s.", reasons)

    fraction = min(HELD_OUT_FRACTION, MAX_HELD_OUT / len(pairs))
    splits = {}
    for texts in pairs:
        splits.setdefault(choose_split(texts[0], fraction), []).append(texts)
    with files.new_folder(output) as folder:
        for split, rows in splits.items():
            for language, lines in zip(pair, zip(*rows, strict=True), strict=True):
                text = "".join(f"{line}\n" for line in lines)
                files.write_text(folder / f"{split}.{language}", text)
        read = [str(path) for path in paths]
        return write_record(folder, pair, {"by": "gettext", "read": read, "dropped": dropped})


def choose_split(source: str, fraction: float) -> str:
    """Returns the split of a source line: a function of its digest.

    `fraction` is the part of the lines in validation, and in test.
    """
    digest = hashlib.sha256(source.encode()).digest()
    place = int.from_bytes(digest[:4]) / 2**32  # in [0, 1)
    if place < fraction:
        return "validation"
    return "test" if place < 2 * fraction else "train"


def find_catalogues(source: Path, pair: LanguagePair) -> list[Path]:
    """Returns the file, or the files in a folder that are named after the target language.

    The name is a part of the path, as in LANG/LC_MESSAGES/app.po, po/LANG.po or domain-LANG.po. A
    `.mo` file beside its `.po` file is left out. Raises UserError if there are none, or if the
    files are of several regions, such as pt_BR and pt_PT for "pt".
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise UserError(f"--gettext={source}: no such file or folder; name a catalogue")

    # The code, perhaps with script, region and variant: zh_Hans_CN, sr@latin. The name of a program
    # may precede it, but not another code: es-AR is not Arabic.
    target = pair[1].lower()
    subtags = r"(?:-(?:[a-z]{2}|[a-z]{4}|\d{3}))*(?:@\w+)?"
    pattern = re.compile(rf"(?:.*\w{{4,}}[-.])?({target}{subtags})")
    found = {}
    for path in sorted(source.rglob("*.[pm]o")):
        if path.suffix == ".mo" and path.with_suffix(".po").is_file():
            continue
        # The name of the folder counts too: --gettext=locale/de.
        relative = path.with_suffix("").relative_to(source)
        for part in (source.resolve().name, *relative.parts):
            match = pattern.fullmatch(part.lower().replace("_", "-"))
            if match:
                found.setdefault(match[1], []).append(path)
                break
    locales = [target] if target in found else list(found)
    if len(locales) != 1:
        raise UserError(
            f"--gettext={source}: needs catalogues of {pair[1]}, with names such as "
            f"{pair[1]}/LC_MESSAGES/app.po or {pair[1]}.po, and has "
            f"{' and '.join(locales) or 'none'}; name one language with --pair, such as "
            "--pair=en-pt-BR, or name the files, separated by commas"
        )
    return found[locales[0]]


def read_pairs(path: Path, pair: LanguagePair) -> Iterator[tuple[str, str]]:
    """Yields the pairs of lines of a catalogue. A missing or fuzzy translation is "".

    Raises UserError if the file is not a catalogue of the target language.
    """
    reader = {".po": read_po, ".mo": read_mo}.get(path.suffix)
    if reader is None:
        raise UserError(f"{path}: is not a catalogue; its name must end in .po or .mo")
    messages = list(reader(path, path.read_bytes()))
    header = next((targets[0] for sources, targets in messages if sources == [""]), "")
    language = re.search(r"^Language:\s*([a-z]{2,3})(?:[-_@.]\S*)?\s*$", header, re.MULTILINE)
    if language and base_code(language[1]) != base_code(pair[1]):
        raise UserError(
            f"{path}: its header has Language: {language[1]}, and --pair={'-'.join(pair)} "
            f"translates into {pair[1]}; leave the file out, or correct its header"
        )
    for sources, targets in messages:
        if sources != [""]:
            forms = choose_forms(targets, header) if len(sources) > 1 else targets[:1]
            for texts in zip(sources, forms, strict=True):
                yield from align_lines(*texts)


def choose_forms(targets: Sequence[str], header: str) -> tuple[str, str]:
    """Returns the plural forms that translate the singular and the plural of the source.

    These are the forms of the numbers 1 and 100 by the header's Plural-Forms. If this field cannot
    be used, they are the first and the last form.
    """
    field = re.search(r"^Plural-Forms:.*\bplural=([^;]*)", header, re.MULTILINE)
    try:
        choose = gettext.c2py(field[1])
        return targets[choose(1)], targets[choose(100)]
    except (TypeError, ValueError, ArithmeticError, IndexError):
        return targets[0], targets[-1]


def align_lines(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yields the lines of two texts, or both texts as one line if their lines do not correspond."""
    sides = []
    for text in (source, target):
        lines = [re.sub(r"[\r\t\f\v]+", " ", line).strip() for line in text.strip().split("\n")]
        sides.append(lines)
    has_text = [list(map(bool, lines)) for lines in sides]
    if has_text[0] == has_text[1]:
        yield from (texts for texts in zip(*sides, strict=True) if any(texts))
    else:
        yield tuple(" ".join(filter(None, lines)) for lines in sides)


def read_po(path: Path, content: bytes) -> Iterator[Message]:
    """Yields the messages of a `.po` file. Obsolete messages are comments.

    Raises UserError if the content is not a catalogue.
    """
    entries = []  # the texts by keyword
    keyword = None
    flags = ""  # of the next entry
    lines = content.decode(find_encoding(path, content, content)).removeprefix("\ufeff").split("\n")
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line.startswith("#"):
            # Flags before an obsolete message do not apply to the next one.
            if line.startswith(("#,", "#=", "#~")):
                flags = "" if line.startswith("#~") else flags + line
            continue
        if not line:
            continue
        match = _LINE.fullmatch(line)
        keyword = (match and match[1]) or keyword
        if match is None or keyword is None:
            raise UserError(
                f"{path}: line {number} is not part of a .po file ({line:.40}); correct it"
            )
        if match[1] and (not entries or keyword == "msgctxt" or keyword in entries[-1]):
            entries.append({"flags": flags})
            flags = ""
        text = "".join(re.findall(_STRING, match[2]))
        text = re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), text)
        entries[-1][keyword] = entries[-1].get(keyword, "") + text

    for entry in entries:
        sources = [entry[keyword] for keyword in ("msgid", "msgid_plural") if keyword in entry]
        targets = [text for keyword, text in entry.items() if keyword.startswith("msgstr")]
        if not sources or not targets:
            raise UserError(
                f"{path}: the message {''.join(sources)!r:.40} needs msgid and msgstr; correct it"
            )
        # The template marks its header as fuzzy.
        is_fuzzy = "fuzzy" in entry["flags"] and sources != [""]
        yield sources, [""] * len(targets) if is_fuzzy else targets


def read_mo(path: Path, content: bytes) -> Iterator[Message]:
    """Yields the messages of a `.mo` file. Raises UserError if it is not one, or is damaged."""
    if content[:4] not in _BYTE_ORDERS:
        raise UserError(
            f"{path}: is not a .mo file (it begins with {content[:4].hex() or 'nothing'}); compile "
            "the catalogue again with msgfmt, or name its .po file"
        )
    order = _BYTE_ORDERS[content[:4]]
    columns = []  # the texts and their translations
    try:
        count, *tables = struct.unpack_from(f"{order}3I", content, 8)
        for table in tables:
            texts = []
            for row in range(count):
                length, start = struct.unpack_from(f"{order}2I", content, table + 8 * row)
                # A zero byte ends each text, and separates the plural forms.
                texts += struct.unpack_from(f"{length}sx", content, start)
            columns.append(texts)
    except struct.error as error:
        raise UserError(
            f"{path}: is truncated or damaged ({error}); compile the catalogue again with msgfmt"
        ) from error

    messages = list(zip(*columns, strict=True))
    encoding = find_encoding(path, dict(messages).get(b"", b""), b"\n".join(sum(columns, [])))
    for source, target in messages:
        # A context may precede the text.
        sources = source.decode(encoding).rpartition("\x04")[2].split("\0")
        yield sources, target.decode(encoding).split("\0")


def find_encoding(path: Path, header: bytes, content: bytes) -> str:
    """Returns UTF-8 if the content is UTF-8, else the charset that the header names.

    Text of another charset is hardly ever valid UTF-8, unless it is ASCII. So a wrong header does
    not matter there. Raises UserError if the content is in neither charset.
    """
    charset = re.search(rb"charset=([\w.:-]+)|$", header)[1] or b"utf-8"
    for name in ("utf-8", charset.decode()):
        # LookupError: there is no such charset, as CHARSET of the template.
        with contextlib.suppress(LookupError, UnicodeError):
            content.decode(name)
            return name
    raise UserError(
        f"{path}: is neither UTF-8 nor {name}, the charset of its header; correct the header"
    )
