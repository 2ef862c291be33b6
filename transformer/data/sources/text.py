"""Parallel files: line N of the source file belongs to line N of the target file, as text or as integers."""

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from transformer import files
from transformer.config_types import Config
from transformer.data.sources import downloads
from transformer.data.sources.lines import LineFile, is_natural_number
from transformer.errors import UserError


class FilePair(NamedTuple):
    """The source and target files of one stem."""

    source: LineFile
    target: LineFile


@dataclass(frozen=True)
class TextSource:
    """The pairs of one or several pairs of files, concatenated."""

    parts: tuple[FilePair, ...]

    @classmethod
    def open(cls, data: Config, split: str) -> "TextSource":
        """Finds the files of `data.{split}_split`, STEM or STEM+STEM, in `data.path` or among the downloads.

        Raises:
          UserError: no folder is named, or a file is missing.
        """
        folder = files.expanded(data.path) if data.path else downloads.fetch(data)
        if not folder.is_dir():
            raise UserError(f"data.path={data.path}: no such folder; name the one with the STEM.LANG[.gz] files")
        languages = (data.source_language, data.target_language)
        key = f"{split}_split"
        stems = [stem.strip() for stem in getattr(data, key).split("+")]
        return cls(tuple(FilePair(*(_find(folder, stem, language, key) for language in languages)) for stem in stems))

    @property
    def name(self) -> str:
        return " + ".join(f"{part.source.path} and {part.target.path.name}" for part in self.parts)

    @property
    def seekable(self) -> bool:
        return all(file.seekable for part in self.parts for file in part)

    @property
    def identity(self) -> dict:
        return {"source": type(self).__name__, "files": [[file.identity for file in part] for part in self.parts]}

    @cached_property
    def _starts(self) -> list[int]:
        """The number of each part's first pair, and the number of all pairs."""
        for source, target in self.parts:
            if len(source) != len(target):
                raise UserError(
                    f"{source.path} has {len(source)} lines and {target.path} has {len(target)}: "
                    f"line N of one must translate line N of the other"
                )
        return [0, *itertools.accumulate(len(part.source) for part in self.parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def where(self, index: int, side: int) -> str:
        part = bisect.bisect_right(self._starts, index) - 1
        return f"{self.parts[part][side].path}, line {index - self._starts[part] + 1}"

    def pairs(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        for first, (source, target) in zip(self._starts, self.parts, strict=False):
            low, high = max(start - first, 0), min(stop - first, len(source))
            if low < high:
                yield from zip(source.lines(low, high), target.lines(low, high), strict=True)


@dataclass(frozen=True)
class IdsSource(TextSource):
    """Pairs of integer sequences: lines of space-separated non-negative integers."""

    def pairs(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        """Yields pairs start to stop. Raises UserError, with file and line, for anything but integers."""
        for index, pair in enumerate(super().pairs(start, stop), start):
            for side, line in enumerate(pair):
                for token in line.split():
                    if not is_natural_number(token):
                        shown = token.decode(errors="backslashreplace")
                        raise UserError(f"{self.where(index, side)}: '{shown:.40}' is not a non-negative integer")
            yield pair


def _find(folder: Path, stem: str, language: str, key: str) -> LineFile:
    for name in (f"{stem}.{language}", f"{stem}.{language}.gz"):
        if (folder / name).is_file():
            return LineFile((folder / name).resolve())
    names = (path.name.removesuffix(".gz") for path in folder.iterdir())
    stems = sorted({name.removesuffix(f".{language}") for name in names if name.endswith(f".{language}")})
    found = ", ".join(stems[:10]) if stems else f"no file ending in .{language}"
    raise UserError(f"data.{key}={stem}: no {stem}.{language} or {stem}.{language}.gz in {folder}; found: {found}")
