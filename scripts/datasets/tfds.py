"""Preparation of TFDS datasets as array_record, without TensorFlow."""

import contextlib
import os
import resource
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from transformer.support.errors import UserError
from transformer.support.files import make_folder

# Replaces TensorFlow's file functions. TFDS uses them to extract archives, and to shuffle more than
# 1 GB.
TENSORFLOW = SimpleNamespace(
    compat=SimpleNamespace(as_text=os.fsdecode),
    io=SimpleNamespace(
        gfile=SimpleNamespace(
            GFile=open, exists=os.path.exists, remove=os.remove, copy=shutil.copyfile
        )
    ),
    # Local files raise neither of these errors.
    errors=SimpleNamespace(ResourceExhaustedError=(), UnimplementedError=()),
)


def prepare(dataset: str, output: Path, archives: Path | None) -> dict[str, Any]:
    """Downloads a dataset, such as "wmt14_translate/de-en", unless `output` has it.

    Args:
      archives: a folder with files that need no download, named like the ends of their URLs. TFDS
        verifies their checksums.

    Returns:
      The name and folder of the dataset, and the number of its sentences by split.

    Raises UserError if the dataset is unknown, or a file is missing, damaged, or cannot be
    downloaded. Only files that were downloaded completely stay in `output`/downloads.
    """
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate  # noqa: F401  # see transformer.data.sources.tfds

    if archives is not None and not archives.is_dir():
        raise UserError(f"--archives={archives}: no such folder")
    try:
        builder = tfds.builder(dataset, data_dir=output, file_format="array_record")
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"--tfds={dataset}: {one_line(error)}") from error
    if not builder.is_prepared():
        download(builder, output, archives)
    return {
        "dataset": builder.info.full_name,
        "data_dir": str(output),
        "examples": {name: split.num_examples for name, split in builder.info.splits.items()},
    }


def download(builder: Any, output: Path, archives: Path | None) -> None:
    """Downloads and prepares the dataset of a builder. Raises UserError as `prepare` does."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import download_manager, extractor, util

    damaged = (
        download_manager.NonMatchingChecksumError,
        extractor.ExtractError,
        extractor.UnsafeArchiveError,
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        ValueError,
        AssertionError,
    )

    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    make_folder(output, "--output")
    # Used below to delete what a failed preparation of a new dataset has left.
    dataset_folder = output / builder.name
    is_new = not dataset_folder.exists()
    try:
        # Extracted files are deleted after the call. Otherwise TFDS would use them even after
        # their archive has been replaced.
        with (
            contextlib.redirect_stdout(sys.stderr),  # TFDS prints messages
            tempfile.TemporaryDirectory(prefix=".extracted.", dir=output) as extracted,
            without_tensorflow(),
        ):
            config = tfds.download.DownloadConfig(
                extract_dir=extracted, manual_dir=archives, try_download_gcs=False
            )
            builder.download_and_prepare(download_dir=output / "downloads", download_config=config)
    except (*damaged, OSError, util.DownloadError) as error:
        if is_new:
            shutil.rmtree(dataset_folder, ignore_errors=True)
        # A full disk is reported as such: no archive is damaged.
        if "No space left on device" in str(error):
            raise
        raise UserError(
            f"--tfds={builder.info.full_name}: {one_line(error)}; delete a damaged archive, "
            "or get a missing one, and give its folder with --archives=DIR"
        ) from error
    finally:
        # Complete archives stay in downloads, for the next attempt.
        for unfinished in (output / "downloads").rglob("*.tmp.*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty
            (output / "downloads" / builder.name).rmdir()


def one_line(error: BaseException) -> str:
    """Returns the type and the message of an error, shortened."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.400}"


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Lets TFDS download, extract and shuffle without TensorFlow, even if it is installed.

    On failure, the block waits for downloads and extractions in progress.
    """
    from tensorflow_datasets.core import shuffle
    from tensorflow_datasets.core.download import download_manager, downloader, extractor

    # TFDS has one global instance of each. Their threads might outlive the block.
    download = downloader._Downloader()
    extract = extractor._Extractor()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        # Shuffling on disk keeps 1,000 files open, so the soft limit becomes the hard limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        for module in (shuffle, downloader, extractor):
            stack.enter_context(mock.patch.object(module, "tf", TENSORFLOW))
        stack.enter_context(
            mock.patch.object(download_manager, "get_downloader", lambda **_: download)
        )
        stack.enter_context(mock.patch.object(extractor, "get_extractor", lambda: extract))
        # Extractions are not cancelled, because others may wait for them in the queue, and would
        # then wait forever.
        stack.callback(extract._executor.shutdown)
        # The last callback runs first: downloads end before extractions, which they start.
        stack.callback(download._executor.shutdown, cancel_futures=True)
        yield
