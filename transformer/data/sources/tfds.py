"""Translation datasets of TensorFlow Datasets, read as random-access records without TensorFlow."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer.config_types import Config
from transformer.errors import UserError

BLOCK = 1024  # records read at once: TFDS returns them as a list


@dataclass(frozen=True)
class TfdsSource:
    """A split of a prepared dataset, or any slice of it in TFDS's own syntax."""

    dataset: str  # such as wmt14_translate/de-en
    data_dir: str  # "": the default of TFDS
    split: str
    languages: tuple[str, str]

    seekable = True

    @classmethod
    def open(cls, data: Config, split: str) -> "TfdsSource":
        """Raises UserError for an unknown dataset, language or split, and for a dataset that is not prepared."""
        languages = (data.source_language, data.target_language)
        source = cls(data.name, data.path, getattr(data, f"{split}_split"), languages)
        features = _builder(source.dataset, source.data_dir).info.features
        missing = [language for language in source.languages if language not in features]
        if missing:
            raise UserError(
                f"data.source_language, data.target_language={', '.join(source.languages)}: {data.name} has no "
                f"{' and no '.join(missing)}; it has {', '.join(features)}"
            )
        try:
            len(source)
        except ValueError as error:
            raise UserError(f"data.{split}_split={source.split}: {_one_line(error)}") from error
        return source

    @property
    def name(self) -> str:
        return f"{self.dataset}, {self.split}"

    @property
    def identity(self) -> dict:
        info = _builder(self.dataset, self.data_dir).info
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
        return f"{self.name}, record {index + 1}, {self.languages[side]}"

    def __len__(self) -> int:
        return len(self._records())

    def pairs(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        source, target = self.languages
        for first in range(start, stop, BLOCK):
            for record in self._records().__getitems__(range(first, min(first + BLOCK, stop))):
                yield record[source], record[target]

    def _records(self) -> Any:
        return _records(self.dataset, self.data_dir, self.split)


# These functions are cached outside the source, so that a source can be pickled: each process opens the files itself.


@functools.cache
def _builder(dataset: str, data_dir: str) -> Any:
    # TFDS takes a second to import, which only its users should pay. The second import registers the translation
    # datasets, which TFDS would otherwise look for with TensorFlow.
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate  # noqa: F401

    options = {"data_dir": data_dir} if data_dir else {}
    try:
        builder = tfds.builder(dataset, **options)
    except tfds.core.DatasetNotFoundError as error:
        place = f" or in {data_dir}" if data_dir else ""
        raise UserError(f"data.name={dataset}: not found in TFDS{place}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"data.name={dataset}: {_one_line(error)[:200]}") from error
    arguments = ", ".join([repr(dataset), *(f"{key}={value!r}" for key, value in options.items())])
    command = (
        f"""python -c "import tensorflow_datasets as tfds, tensorflow_datasets.translate; """
        f"""tfds.builder({arguments}, file_format='array_record').download_and_prepare()\""""
    )
    if not builder.info.splits:
        raise UserError(f"data.name={dataset}: not prepared in {builder.data_dir}; run: {command}")
    if builder.info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
        raise UserError(
            f"data.name={dataset}: prepared in {builder.data_dir} as {builder.info.file_format.value}, which has no "
            f"random access; remove it and run: {command}"
        )
    return builder


@functools.cache
def _records(dataset: str, data_dir: str, split: str) -> Any:
    return _builder(dataset, data_dir).as_data_source(split=split)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
