"""Any translation dataset of TensorFlow Datasets, read as random-access records, without TensorFlow."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer.errors import UserError

BLOCK = 1024  # records asked for together: TFDS gives them as a list


@dataclass(frozen=True)
class TfdsSource:
    """A split, or any slice of it in TFDS's own syntax, of a prepared dataset."""

    dataset: str  # as in wmt14_translate/de-en
    data_dir: str  # "": TFDS's own
    split: str
    languages: tuple[str, str]

    seekable = True

    @classmethod
    def open(cls, data, split: str) -> "TfdsSource":
        """Raises UserError for an unknown dataset, language or split, and for a dataset that is not prepared."""
        source = cls(
            data.name, data.path, getattr(data, f"{split}_split"), (data.source_language, data.target_language)
        )
        builder = source._builder()
        absent = [language for language in source.languages if language not in builder.info.features]
        if absent:
            raise UserError(
                f"data.source_language, data.target_language={', '.join(source.languages)}: {data.name} has no "
                f"{' and no '.join(absent)}; it has {', '.join(builder.info.features)}"
            )
        try:
            len(source)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"data.{split}_split={source.split}: {reason}") from error
        return source

    @property
    def name(self) -> str:
        return f"{self.dataset}, {self.split}"

    @property
    def identity(self) -> dict:
        info = self._builder().info
        parts = info.splits[self.split].file_instructions
        return {
            "source": "tfds",
            "dataset": info.full_name,
            "folder": info.data_dir,
            "languages": self.languages,
            "records": [[part.filename, part.skip, part.take] for part in parts],
            "prepared": (Path(info.data_dir) / "dataset_info.json").stat().st_mtime_ns,
        }

    def where(self, index: int, side: int) -> str:
        return f"{self.name}, record {index}, {self.languages[side]}"

    def __len__(self) -> int:
        return len(self._records())

    def pairs(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        source, target = self.languages
        for first in range(start, stop, BLOCK):
            for record in self._records().__getitems__(range(first, min(first + BLOCK, stop))):
                yield record[source], record[target]

    def _builder(self) -> Any:
        return _builder(self.dataset, self.data_dir)

    def _records(self) -> Any:
        return _records(self.dataset, self.data_dir, self.split)


# Kept outside the source, so that a source can be sent to another process, which opens the files itself.


@functools.cache
def _builder(dataset: str, data_dir: str) -> Any:
    # TFDS takes a second to import, which runs on other data should not wait for. The second import registers
    # the translation datasets: TFDS would otherwise need TensorFlow to find them.
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate  # noqa: F401

    place = {"data_dir": data_dir} if data_dir else {}
    try:
        builder = tfds.builder(dataset, **place)
    except tfds.core.DatasetNotFoundError as error:
        raise UserError(f"data.name={dataset}: not known to TFDS, nor in {data_dir or 'its folder'}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"data.name={dataset}: {' '.join(str(error).split())[:200]}") from error
    arguments = ", ".join([repr(dataset), *(f"{key}={value!r}" for key, value in place.items())])
    prepare = (
        f"""python -c "import tensorflow_datasets as tfds, tensorflow_datasets.translate; """
        f"""tfds.builder({arguments}, file_format='array_record').download_and_prepare()\""""
    )
    if not builder.info.splits:
        raise UserError(f"data.name={dataset}: not prepared in {builder.data_dir}; run: {prepare}")
    if builder.info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
        found = builder.info.file_format.value
        raise UserError(
            f"data.name={dataset}: prepared in {builder.data_dir} as {found}, which has no random access; "
            f"remove it and run: {prepare}"
        )
    return builder


@functools.cache
def _records(dataset: str, data_dir: str, split: str) -> Any:
    return _builder(dataset, data_dir).as_data_source(split=split)
