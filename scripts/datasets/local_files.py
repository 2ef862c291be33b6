"""A stand-in for the file functions of TensorFlow, with which TFDS extracts archives and shuffles more than 1 GB."""

import contextlib
import os
import resource
import shutil
from collections.abc import Iterator
from types import SimpleNamespace


class NeverRaised(Exception):
    """Errors of TensorFlow that TFDS catches and local files do not cause."""


TENSORFLOW = SimpleNamespace(
    compat=SimpleNamespace(as_text=os.fsdecode),
    io=SimpleNamespace(
        gfile=SimpleNamespace(GFile=open, exists=os.path.exists, remove=os.remove, copy=shutil.copyfile)
    ),
    errors=SimpleNamespace(ResourceExhaustedError=NeverRaised, UnimplementedError=NeverRaised),
)


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Lets TFDS download, extract and shuffle without TensorFlow during the block, also where it is installed.

    On failure, the block waits for downloads and extractions in progress.
    """
    from tensorflow_datasets.core import shuffle
    from tensorflow_datasets.core.download import download_manager, downloader, extractor

    # TFDS keeps one of each, whose threads may outlive the block.
    download, extract = downloader._Downloader(), extractor._Extractor()
    replacements = [(module, "tf", TENSORFLOW) for module in (shuffle, downloader, extractor)]
    replacements += [(download_manager, "get_downloader", lambda **_: download)]
    replacements += [(extractor, "get_extractor", lambda: extract)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1],) * 2)  # shuffling on disk keeps 1,000 files open
        for module, name, replacement in replacements:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, replacement)
        stack.callback(extract._executor.shutdown, cancel_futures=True)
        stack.callback(download._executor.shutdown, cancel_futures=True)  # runs first: downloads start extractions
        yield
