"""Translation datasets of TensorFlow Datasets, read as random-access records without TensorFlow."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer.config.types import Config
from transformer.support import files
from transformer.support.errors import UserError

BLOCK = 1024  # records read at once: TFDS returns them as a list


@dataclass(frozen=True)
class TfdsSource:
    """A split of a prepared dataset, or any slice of a split in TFDS's own syntax."""

    info: Any  # tfds.core.DatasetInfo
    records: Any  # a sequence that can also return several records at once
    split: str
    languages: tuple[str, str]

    @classmethod
    def open(cls, data: Config, split: str) -> "TfdsSource":
        """Opens `data.{split}_split` of the dataset `data.name`.

        Raises UserError if the dataset, a language or the split is unknown, or if the dataset is
        not prepared.
        """
        # TFDS takes a second to import, which only its users should pay. The second import
        # registers the translation datasets, which TFDS would otherwise look for with TensorFlow.
        import tensorflow_datasets as tfds
        import tensorflow_datasets.translate  # noqa: F401

        name = f"data.name={data.name}"
        folder = files.expand_user(data.path) if data.path else None
        try:
            builder = tfds.builder(data.name, data_dir=folder)
        except (ValueError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{name}: {reason[:200]}") from error

        # The command that prepares the dataset.
        output = str(folder or tfds.core.constants.DATA_DIR)
        command = (
            f"run: python -m scripts.get_data --tfds={data.name} --output={shlex.quote(output)}"
        )
        if not builder.info.splits:
            raise UserError(f"{name}: not prepared in {builder.data_dir}; {command}")
        file_format = builder.info.file_format
        if file_format != tfds.core.FileFormat.ARRAY_RECORD:  # other formats have no random access
            raise UserError(
                f"{name}: prepared in {builder.data_dir} as {file_format.value}; remove it and "
                f"{command}"
            )

        languages = (data.source_language, data.target_language)
        features = builder.info.features
        missing = [language for language in languages if language and language not in features]
        if missing:
            raise UserError(
                f"data.source_language, data.target_language={', '.join(languages)}: {data.name} "
                f"has no {' and no '.join(missing)}; it has {', '.join(features)}"
            )

        expression = data[f"{split}_split"]
        try:
            records = builder.as_data_source(split=expression)
            len(records)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"data.{split}_split={expression}: {reason}") from error
        return cls(builder.info, records, expression, languages)

    @property
    def name(self) -> str:
        return f"{self.info.full_name}, {self.split}"

    @property
    def identity(self) -> dict:
        parts = self.info.splits[self.split].file_instructions
        return {
            "source": "tfds",
            "dataset": self.info.full_name,
            "folder": self.info.data_dir,
            "languages": self.languages,
            "records": [[part.filename, part.skip, part.take] for part in parts],
            "prepared": (Path(self.info.data_dir) / "dataset_info.json").stat().st_mtime_ns,
        }

    def where(self, index: int, side: int) -> str:
        return f"{self.name}, record {index + 1}, {self.languages[side]}"

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for first in range(0, len(self), BLOCK):
            block = range(first, min(first + BLOCK, len(self)))
            for record in self.records.__getitems__(block):
                source, target = (record[key] if key else b"" for key in self.languages)
                yield source, target
