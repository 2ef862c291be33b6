"""Parallel files of text or of integers: line N of one file translates line N of the other."""

import bisect
import hashlib
import http.client
import itertools
import shutil
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from absl import logging

from transformer.config.types import Config
from transformer.data.sources.lines import (
    PACKED,
    count_lines,
    different_lengths,
    is_natural_number,
    read_lines,
)
from transformer.support import cache, files
from transformer.support.errors import UserError

# How to turn other files into the plain or gzip text that is read.
_CONVERSIONS = {
    **dict.fromkeys(PACKED, "unpack it"),
    **dict.fromkeys(
        (".csv", ".json", ".jsonl"), "write each side to a file STEM.LANG, a text a line"
    ),
    ".parquet": "python -m scripts.get_data --hf=FOLDER reads it",
    ".tsv": "write each column to a file STEM.LANG, as with cut -f1",
}
_TIMEOUT = 30  # seconds without any data before a server counts as unreachable


@dataclass(frozen=True)
class TextSource:
    """The pairs of one or several pairs of files, concatenated.

    A side without language has no files.
    """

    parts: tuple[tuple[Path | None, Path | None], ...]

    @classmethod
    def open(cls, data: Config, split: str) -> "TextSource":
        """Finds the files of `data.{split}_split`, which is STEM or STEM+STEM.

        Raises UserError if a file is missing.
        """
        folder = files.expand_user(data.path) if data.path else download(data)
        if not folder.is_dir():
            raise UserError(
                f"data.path={data.path}: no such folder; name the one with the STEM.LANG[.gz] files"
            )

        # Each stem has a file for each language.
        languages = data.source_language, data.target_language
        key = f"{split}_split"
        parts = []
        for stem in data[key].split("+"):
            source, target = (_find(folder, stem.strip(), code, key) for code in languages)
            parts.append((source, target))
        return cls(tuple(parts))

    @property
    def name(self) -> str:
        return " + ".join(
            f"{source} and {target.name}" if source and target else str(source or target)
            for source, target in self.parts
        )

    @property
    def identity(self) -> dict:
        paths = [path for part in self.parts for path in part]
        identities = [path and file_identity(path) for path in paths]
        return {"source": type(self).__name__, "files": identities}

    @cached_property
    def _starts(self) -> list[int]:
        """The number of the first pair of each part, and the number of all pairs."""
        starts = [0]
        for source, target in self.parts:
            counts = [count_lines(path) for path in (source, target) if path]
            if source and target and counts[0] != counts[1]:
                raise different_lengths(source, target, *counts)
            starts.append(starts[-1] + counts[0])
        return starts

    def __len__(self) -> int:
        return self._starts[-1]

    def where(self, index: int, side: int) -> str:
        part = bisect.bisect_right(self._starts, index) - 1
        return f"{self.parts[part][side]}, line {index - self._starts[part] + 1}"

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        len(self)  # raises UserError if files differ in length
        for part in self.parts:
            sides = [read_lines(path) if path else itertools.repeat(b"") for path in part]
            # Files of a part have the same number of lines; only a side without a file is endless.
            yield from zip(*sides, strict=False)


@dataclass(frozen=True)
class IdsSource(TextSource):
    """Pairs of integer sequences: lines of space-separated non-negative integers."""

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the pairs. Raises UserError, with file and line, for anything but integers."""
        for index, pair in enumerate(super().__iter__()):
            for side, line in enumerate(pair):
                for token in line.split():
                    if not is_natural_number(token):
                        text = token.decode(errors="backslashreplace")
                        raise UserError(
                            f"{self.where(index, side)}: '{text:.40}' is not a non-negative "
                            "integer of at most 18 digits"
                        )
            yield pair


def file_identity(path: Path) -> tuple[str, int, int]:
    """Returns the path, size and modification time of a file."""
    return str(path), path.stat().st_size, path.stat().st_mtime_ns


def _find(folder: Path, stem: str, language: str, key: str) -> Path | None:
    if not language:
        return None
    ending = f".{language}"
    plain = folder / f"{stem}{ending}"
    packed = folder / f"{stem}{ending}.gz"
    for path in (plain, packed):
        if path.is_file():
            return path.parent.resolve() / path.name  # the name of a link tells whether it is gzip

    # Name the stems of this language, and files of other formats.
    paths = sorted(folder.iterdir())
    names = {path.name.removesuffix(".gz") for path in paths}
    stems = sorted(name.removesuffix(ending) for name in names if name.endswith(ending))
    advice = ", ".join(stems[:10]) if stems else f"no file ending in {ending}"
    convertible = [path for path in paths if path.suffix in _CONVERSIONS]
    for path in convertible[:3]:
        advice += f"; {path.name}: {_CONVERSIONS[path.suffix]}"
    raise UserError(
        f"data.{key}={stem}: no {plain.name} or {packed.name} in {folder}; found: {advice}"
    )


def download(data: Config) -> Path:
    """Returns the folder of `data.downloads`, after downloading all files.

    Raises UserError if a download fails.
    """
    if not data.downloads:
        raise UserError(
            f"data.path is empty: data.source={data.source} needs the folder with the "
            "STEM.LANG[.gz] files"
        )

    # Other versions of the files go to another folder.
    digests = "\n".join(sha256 for _, _, sha256 in data.downloads)
    key = hashlib.sha256(digests.encode()).hexdigest()[:8]
    folder = cache.cache_folder(data.cache_dir) / "downloads" / f"{Path(data.name).name}-{key}"

    names = ", ".join(name.removesuffix(".gz") for name, _, _ in data.downloads)
    advice = (
        f"put {names} (plain, or gzipped with .gz added) in a folder and add "
        "--config.data.path=FOLDER"
    )

    def fill(unfinished: Path) -> None:
        for name, url, sha256 in data.downloads:
            _download(url, unfinished / name, sha256, advice)

    cache.make_once(folder, fill, data.wait_seconds)
    return folder


def _download(url: str, path: Path, sha256: str, advice: str) -> None:
    logging.info("Downloading %s", url)
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, path.open("wb") as file:
            shutil.copyfileobj(response, file)
        with path.open("rb") as file:
            received = hashlib.file_digest(file, "sha256").hexdigest()
        if received != sha256:
            raise ValueError(f"sha256 is {received}, data.downloads has {sha256}")
    # OSError includes URLError and time-outs.
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.errno in files.FULL_DISK:
            raise  # the download is not to blame
        reason = " ".join(str(getattr(error, "reason", error)).split())
        raise UserError(f"{url}: download failed ({reason}); {advice}") from error
