"""`scripts.get_data --gettext`: messages of `.po` and `.mo` files as parallel text."""

import codecs
import json
import struct
from collections import Counter
from pathlib import Path

import pytest

from scripts import get_data
from scripts.datasets import catalogues
from tests.scripts.test_get_data import error, result

HEADER = r"""
#, fuzzy
msgid ""
msgstr ""
"Language: LANGUAGE\n"
"Content-Type: text/plain; charset=CHARSET\n"
"Plural-Forms: PLURALS\n"
"""
GERMAN = "nplurals=2; plural=n != 1;"
ARABIC = (
    "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11"
    " ? 4 : 5;"
)


def write_po(
    path: Path, text: str, language="de", charset="UTF-8", encoding=None, plurals=GERMAN
) -> Path:
    header = HEADER.replace("LANGUAGE", language).replace("CHARSET", charset)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = header.replace("PLURALS", plurals) + text
    path.write_bytes(content.encode(encoding or charset))
    return path


def write_mo(path: Path, messages: dict[str, str], order: str = "<", charset="UTF-8") -> Path:
    """Writes the format that the manual of GNU gettext describes."""
    messages = {"": f"Language: de\nContent-Type: text/plain; charset={charset}\n"} | messages
    columns = [
        [text.encode(charset) for text in column] for column in zip(*messages.items(), strict=True)
    ]
    count = len(messages)
    content = struct.pack(f"{order}7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0)
    start = len(content) + 16 * count
    for text in sum(columns, []):
        content += struct.pack(f"{order}2I", len(text), start)
        start += len(text) + 1
    path.write_bytes(content + b"".join(text + b"\0" for text in sum(columns, [])))
    return path


def pairs(path: Path, target: str = "de") -> list[tuple[str, str]]:
    return list(catalogues.read_pairs(path, ("en", target)))


def test_messages_of_all_kinds(tmp_path):
    path = write_po(
        tmp_path / "de.po",
        r"""
#Comment without a space
#:file.c:1
#| msgid "Previous"
#, c-format
msgid "%s said: \"%(name)s\" has {0} <b>&amp;\t_files</b>"
msgstr "%s sagte: \"%(name)s\" hat {0} <b>&amp;\t_Dateien</b>"

msgctxt "menu"
msgid "Open"
msgstr "Öffnen"
msgctxt "state"
msgid "Open"
msgstr   "Offen"

#,fuzzy
msgid "guess"
msgstr "geraten"

#, fuzzy
#~ msgid "old"
#~ msgstr "alt"

msgid ""
"a long "
"\\n text"
msgstr "ein langer "   "\\n Text"
msgid "missing"
msgstr ""
""",
    )
    assert pairs(path) == [
        (
            '%s said: "%(name)s" has {0} <b>&amp; _files</b>',
            '%s sagte: "%(name)s" hat {0} <b>&amp; _Dateien</b>',
        ),
        ("Open", "Öffnen"),
        ("Open", "Offen"),
        ("guess", ""),
        ("a long \\n text", "ein langer \\n Text"),
        ("missing", ""),
    ]


def test_lines_are_paired_if_they_correspond():
    assert list(catalogues.align_lines("a\n\nb\n", "\nx\n\n y ")) == [("a", "x"), ("b", "y")]
    assert list(catalogues.align_lines("a\n\nb", "x\ny\n\nz\n")) == [("a b", "x y z")]
    assert list(catalogues.align_lines("a\n\nb", "x\ny\nz")) == [("a b", "x y z")]
    assert list(catalogues.align_lines("a\nb", "x")) == [("a b", "x")]
    # U+2028 and the non-breaking space are text, as in the files that runs read.
    assert list(catalogues.align_lines("a\r\nb\fc", "x\u2028z\ny\u00a0:")) == [
        ("a", "x\u2028z"),
        ("b c", "y\u00a0:"),
    ]


def test_plural_forms_are_those_of_1_and_100(tmp_path):
    forms = '\nmsgid "%d file"\nmsgid_plural "%d files"\n'
    arabic = forms + "".join(f'msgstr[{n}] "form {n}"\n' for n in range(6))
    path = write_po(tmp_path / "ar.po", arabic, "ar", plurals=ARABIC)
    assert pairs(path, "ar") == [("%d file", "form 1"), ("%d files", "form 5")]
    for plurals in ("nplurals=INTEGER; plural=EXPRESSION;", "", "plural=n/0;", "plural=n;"):
        path = write_po(tmp_path / "ar.po", arabic, "ar", plurals=plurals)
        assert pairs(path, "ar") == [("%d file", "form 0"), ("%d files", "form 5")]
    one = forms + 'msgstr[0] "form"\n'
    path = write_po(tmp_path / "ja.po", one, "ja", plurals="nplurals=1; plural=0;")
    assert pairs(path, "ja") == [("%d file", "form"), ("%d files", "form")]


@pytest.mark.parametrize(
    ("charset", "encoding"),
    [
        ("ISO-8859-1", "ISO-8859-1"),
        ("ISO-8859-1", "UTF-8"),
        ("CHARSET", "UTF-8"),
        ("utf8", "UTF-8"),
    ],
)
def test_charsets(tmp_path, charset, encoding):
    """UTF-8 is read as UTF-8 also if the header names another charset."""
    path = write_po(
        tmp_path / "de.po", 'msgid "a"\nmsgstr "ä"\n', charset=charset, encoding=encoding
    )
    assert pairs(path) == [("a", "ä")]
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert pairs(path) == [("a", "ä")]
    if encoding == "UTF-8":
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes().lstrip())
        assert pairs(path) == [("a", "ä")]


@pytest.mark.parametrize("order", ["<", ">"])
def test_compiled_catalogues(tmp_path, order):
    messages = {"menu\x04Open": "Öffnen", "%d file\0%d files": "%d Datei\0%d Dateien"}
    path = write_mo(tmp_path / "app.mo", messages, order, charset="ISO-8859-1")
    assert pairs(path) == [("Open", "Öffnen"), ("%d file", "%d Datei"), ("%d files", "%d Dateien")]


def test_catalogues_become_a_folder_with_splits_and_a_record(tmp_path, capsys):
    text = "".join(f'msgid "message {n}"\nmsgstr "Nachricht {n}"\n' for n in range(400))
    first = write_po(tmp_path / "po" / "de.po", text)
    second = write_po(tmp_path / "more.po", 'msgid "OK"\nmsgstr "OK"\n' + text)
    flags = ("--pair=en-de", f"--gettext={first.parent},{second}")
    record = result(capsys, *flags, f"--output={tmp_path / 'data'}")
    assert record["by"] == "gettext" and record["read"] == [str(first), str(second)]
    assert record["dropped"] == {"equal to the source": 1, "duplicate": 400}
    counts = {name: entry["lines"] for name, entry in record["files"].items()}
    assert 20 < counts["validation.en"] == counts["validation.de"] < 60 > counts["test.en"] > 20
    assert counts["train.en"] + counts["validation.en"] + counts["test.en"] == 400
    assert record == json.loads((tmp_path / "data" / "data.json").read_text())
    lines = (tmp_path / "data" / "test.en").read_text().splitlines()
    translations = (tmp_path / "data" / "test.de").read_text().splitlines()
    assert translations == [line.replace("message", "Nachricht") for line in lines]
    # A pair stays in its split when other pairs join.
    write_po(first, 'msgid "new"\nmsgstr "neu"\n' + text)
    result(capsys, *flags, f"--output={tmp_path / 'again'}")
    again = (tmp_path / "again" / "test.en").read_text().splitlines()
    assert [line for line in again if line != "new"] == lines


def test_held_out_splits_are_limited():
    sources = [f"message {n}" for n in range(40_000)]
    fraction = catalogues.MAX_HELD_OUT / len(sources)
    counts = Counter(catalogues.choose_split(source, fraction) for source in sources)
    # Three standard deviations of a binomial distribution are 95.
    assert abs(counts["validation"] - 1000) < 95 and abs(counts["test"] - 1000) < 95


@pytest.mark.parametrize(
    ("files", "pair", "expected"),
    [
        (["de/LC_MESSAGES/app.po", "de/LC_MESSAGES/app.mo", "fr/LC_MESSAGES/app.po"], "de", [0]),
        (["po/de.po", "po/fr.po", "po/de_AT.po"], "de", [0]),
        (["po/de.po", "po/de_AT.po"], "de-AT", [1]),
        (["po/app.de_AT.po", "po/app-fr.po"], "de", []),
        (["po/gimp20.de_AT.po", "po/gimp20-fr.po"], "de", [0]),
        (["de/a.po", "de/b.mo", "es-AR.po"], "de", [0, 1]),
        (["es-AR.po", "ar/app.po"], "ar", [1]),
        (["zh_Hans/app.po", "zh_Hant/app.po"], "zh-Hant", [1]),
        (["sr@latin.po", "sr.po"], "sr", [1]),
        (["pt_BR.po"], "pt", [0]),
    ],
)
def test_a_folder_has_catalogues_by_names_of_languages(tmp_path, files, pair, expected):
    for name in files:
        path = tmp_path / "locale" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    if not expected:
        with pytest.raises(catalogues.UserError, match="and has none; name one language"):
            catalogues.find_catalogues(tmp_path / "locale", ("en", pair))
        return
    found = catalogues.find_catalogues(tmp_path / "locale", ("en", pair))
    assert found == [tmp_path / "locale" / files[number] for number in expected]
    # The folder of a language may be named itself.
    if files[0].startswith("de/"):
        assert catalogues.find_catalogues(tmp_path / "locale" / "de", ("en", pair)) == found


def test_unusable_catalogues_are_errors_of_one_line_and_leave_nothing(tmp_path, capsys):
    good = 'msgid "a"\nmsgstr "ä"\n'
    write_po(tmp_path / "cut.po", good + 'msgid "b"\n')
    write_po(tmp_path / "quote.po", good + 'msgid "b"\nmsgstr "open\n')
    write_po(tmp_path / "empty.po", "")
    write_po(tmp_path / "same.po", 'msgid "a"\nmsgstr "a"\n#, fuzzy\nmsgid "b"\nmsgstr "c"\n')
    write_po(tmp_path / "fr.po", good, "fr_CA")
    write_po(tmp_path / "latin.po", good, charset="KOI-8", encoding="ISO-8859-1")
    (tmp_path / "text.po").write_text("Not a catalogue\n")
    (tmp_path / "continued.po").write_text('"text"\n')
    (tmp_path / "nothing.po").touch()
    (tmp_path / "app.pot").touch()
    (tmp_path / "magic.mo").write_bytes(b"\x7fELF" * 9)
    compiled = write_mo(tmp_path / "cut.mo", {"a": "ä"})
    whole = compiled.read_bytes()
    (tmp_path / "pt_BR").mkdir()
    (tmp_path / "locale").mkdir()
    for name in ("pt_BR", "pt_PT"):
        (tmp_path / "locale" / f"{name}.mo").touch()
    for name, message in (
        ("cut.po", "cut.po: the message 'b' needs msgid and msgstr"),
        ("quote.po", 'quote.po: line 11 is not part of a .po file (msgstr "open)'),
        ("text.po", "text.po: line 1 is not part of a .po file (Not a catalogue)"),
        ("continued.po", "continued.po: line 1 is not part"),
        ("empty.po", "no pair is left (dropped: none)"),
        ("nothing.po", "no pair is left (dropped: none)"),
        ("", "no pair is left (dropped: none)"),
        ("same.po", "(dropped: 1 equal to the source, 1 untranslated or fuzzy); name catalogues"),
        ("fr.po", "has Language: fr, and --pair=en-de translates into de"),
        ("latin.po", "latin.po: is neither UTF-8 nor KOI-8, the charset of its header"),
        ("app.pot", "app.pot: is not a catalogue; its name must end in .po or .mo"),
        ("magic.mo", "magic.mo: is not a .mo file (it begins with 7f454c46)"),
        ("nowhere.po", "nowhere.po: no such file or folder"),
        ("pt_BR", "needs catalogues of de, with names such as de/LC_MESSAGES/app.po"),
    ):
        path = str(tmp_path / name) if name else ""
        line = error(capsys, "--pair=en-de", f"--gettext={path}", f"--output={tmp_path / 'data'}")
        assert message in line
    for length in (0, 3, 10, 20, 30, 40, len(whole) - 20, len(whole) - 1):
        compiled.write_bytes(whole[:length])
        line = error(
            capsys, "--pair=en-de", f"--gettext={compiled}", f"--output={tmp_path / 'data'}"
        )
        assert f"{compiled}: is truncated or damaged" in line or "is not a .mo file" in line
    line = error(
        capsys, "--pair=en-pt", f"--gettext={tmp_path / 'locale'}", f"--output={tmp_path / 'data'}"
    )
    assert "has pt-br and pt-pt; name one language with --pair" in line
    assert not list(tmp_path.glob("*data*"))


def test_catalogues_need_a_pair(capsys):
    assert "--pair=SOURCE-TARGET: is missing" in error(capsys, "--gettext=a.po", "--output=data")
    assert get_data.make_parser().parse(["--gettext=a.po", "--output=data"]).gettext == "a.po"
