"""Hypothesis strategies for bytes, texts, values and file damage that commonly break programs."""

import codecs
import shutil
from collections.abc import Callable
from pathlib import Path

import hypothesis
from hypothesis import strategies as st

TROUBLE = (
    *(
        "\n",
        "\r\n",
        "\r",
        "\n\r",
        "\0",
        "\t",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x1b[2J",
        "\x7f",
        "\x85",
        "\u2028",
        "\u2029",
    ),
    *(
        " ",
        "\xa0",
        "\u200b",
        "\u200d",
        "\u202e",
        "\ufeff",
        "\ufffd",
        "\uffff",
        "\U0010ffff",
        "\ue000",
        "\u0301",
    ),
    *(
        "\u2581",
        "\u2585",
        "<s>",
        "</s>",
        "<unk>",
        "<pad>",
        "<0x0A>",
        "\ufdfa",
        "\u1e9e",
        "\u4e2d\u6587",
        "\xb2",
        "\u0663",
    ),
    *(
        "1",
        "2 3",
        "007",
        "-1",
        "9" * 30,
        "9" * 5000,
        "1e999",
        "nan",
        "[" * 3000,
        '{"a":',
        "~nobody-of-that-name",
        "%s",
    ),
)
NOT_UTF8 = (
    *(
        b"\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe4",
        b"\x80",
        codecs.BOM_UTF16_LE,
        "ä".encode("latin-1"),
    ),
    *(codecs.BOM_UTF8, codecs.BOM_UTF8[:2], "a\n".encode("utf-16"), "a\n".encode("utf-32")),
)

texts = st.lists(st.sampled_from(TROUBLE) | st.text(max_size=6), max_size=8).map("".join)
contents = st.lists(
    st.sampled_from(NOT_UTF8)
    | st.binary(max_size=6)
    | st.just(b"\n")
    | texts.map(lambda text: text.encode(errors="replace")),
    max_size=12,
).map(b"".join)

numbers = (
    st.integers() | st.floats() | st.sampled_from([2**31, -(2**63), 10**400, 1e308, 5e-324, -0.0])
)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def examples(share: float) -> hypothesis.settings:
    """Returns settings that run only this share of the profile's examples, for slow tests."""
    return hypothesis.settings(
        max_examples=max(1, round(hypothesis.settings.default.max_examples * share))
    )


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Draws the content of a file after a disk error, a bad copy or an editor; sometimes it is
    unchanged.
    """
    place = st.integers(0, len(content))
    kind = draw(st.sampled_from(("cut", "flip", "insert", "zero", "other", "twice", "ends")))
    if kind == "cut":
        return content[: draw(place)]
    if kind == "other":
        return draw(contents)
    if kind == "twice":
        return content + content
    if kind == "ends":
        return codecs.BOM_UTF8 + content.replace(b"\n", b"\r\n")
    start = draw(place)
    if kind == "insert":
        return content[:start] + draw(contents) + content[start:]
    if kind == "zero":
        stop = min(start + draw(st.sampled_from((1, 512, 4096))), len(content))
        return content[:start] + bytes(stop - start) + content[stop:]
    changed = bytearray(content)
    for at in draw(st.lists(st.integers(0, max(len(content) - 1, 0)), min_size=1, max_size=4)):
        changed[at : at + 1] = bytes([draw(st.integers(0, 255))])
    return bytes(changed)


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_folder(path: Path) -> None:
    delete(path)
    path.mkdir()


def make_file(path: Path) -> None:
    delete(path)
    path.write_bytes(b"")


@st.composite
def damages(draw: st.DrawFn, root: Path) -> tuple[Path, Callable[[Path], object]]:
    """Draws a path relative to `root` and a function that damages that path in a copy."""
    path = draw(st.sampled_from(sorted(path for path in root.rglob("*"))))
    change = draw(
        st.sampled_from((delete, make_folder, make_file, None))
        if path.is_dir()
        else _changes_of_a_file
    )
    if change is None:
        stray = draw(st.sampled_from(("\xb2", "7", "x" * 200, "007", ".hidden", "9" * 30)))
        return path.relative_to(root), lambda folder: (folder / stray).mkdir(exist_ok=True)
    if change == "damage":
        content = draw(damaged(path.read_bytes()))
        return path.relative_to(root), lambda file: file.write_bytes(content)
    return path.relative_to(root), change


_changes_of_a_file = st.sampled_from((delete, make_folder, "damage", "damage", "damage"))
