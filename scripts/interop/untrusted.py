"""Reading of files that others made: sizes are checked against the file before memory is taken, and
no code runs.

Every function raises UserError, one line that begins with the file, if the file is missing or
damaged. In a block `with reading(path)`, so do a Cursor and all other code.
"""

import contextlib
import json
import math
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors import SafetensorError
from safetensors.numpy import load_file

from scripts.interop.portable import Arrays
from transformer.support.errors import MALFORMED, UserError

MAX_TEXT = 1 << 26  # bytes of a JSON, YAML or text file, and of a SentencePiece model
MAX_MODEL = 1 << 33  # bytes of a file of weights
# times the size of an archive that its content may have, if that is more than MAX_TEXT
MAX_INFLATION = 16
LFS_POINTER = b"version https://git-lfs"  # the beginning of a small text instead of a file
PICKLES = ("pytorch_model.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
DAMAGED = (
    *MALFORMED,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    SafetensorError,
    yaml.YAMLError,
    SyntaxError,
    tokenize.TokenError,  # in the header of a NumPy array, which is a Python expression
)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the errors that a missing or damaged file causes in the block into a UserError that
    names it.
    """
    try:
        yield
    except UserError as error:
        raise UserError(
            str(error) if str(error).startswith(str(path)) else f"{path}: {error}"
        ) from None
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror or error}") from None
    except DAMAGED as error:
        reason = (
            f"no {error}"
            if isinstance(error, KeyError)
            else " ".join(str(error).split()) or type(error).__name__
        )
        raise UserError(f"{path}: damaged ({reason:.120})") from None


def check_file(path: Path, limit: int = MAX_MODEL) -> Path:
    """Returns the path. Raises UserError unless it is a regular file in its folder of at most
    `limit` bytes.

    Reading a pipe or a device may never end, and a link may lead to a private file of the user.
    """
    with reading(path):
        target = path.resolve(strict=True)
        folder = path.parent.resolve()
        # The cache of Hugging Face's hub has links from snapshots/NAME/ into blobs/.
        root = folder.parents[1] if folder.parent.name == "snapshots" else folder
        if not target.is_relative_to(root):
            raise UserError("is a link out of its folder; put the file itself there")
        status = target.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError("is not a regular file")
        if status.st_size > limit:
            raise UserError(f"has {status.st_size:,} bytes, must have at most {limit:,}")
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise UserError(
                    "is a pointer of Git LFS; run git lfs pull, which fetches the file itself"
                )
    return path


def is_readable(path: Path) -> bool:
    """Returns True for a file that `check_file` takes."""
    try:
        return check_file(path) == path
    except UserError:
        return False


def read_bytes(path: Path, limit: int = MAX_TEXT) -> bytes:
    """Reads a file of at most `limit` bytes."""
    return check_file(path, limit).read_bytes()


class Cursor:
    """A position in the content of a binary file, whose numbers are little-endian."""

    def __init__(self, path: Path) -> None:
        self.content = memoryview(read_bytes(path, MAX_MODEL))
        self.position = 0

    def take(self, size: int) -> memoryview:
        """Returns the next bytes. Raises ValueError beyond the end of the file."""
        start = self.position
        self.position += size
        if size < 0 or self.position > len(self.content):
            raise ValueError(f"a value at byte {start} goes beyond the end, {len(self.content)}")
        return self.content[start : self.position]

    def unsigned(self, size: int) -> int:
        """Returns the next integer, of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def name(self, size: int) -> str:
        """Returns the next name, of `size` bytes with the NUL at its end, if there is one."""
        return bytes(self.take(size)).decode().removesuffix("\0")

    def array(self, dtype: Any, shape: Sequence[int]) -> np.ndarray:
        """Returns the next array, a view of the content."""
        dtype = np.dtype(dtype)
        return np.frombuffer(self.take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def check_finite(path: Path, arrays: Arrays) -> None:
    """Raises UserError, with its name, for an array that has a NaN or an infinity."""
    for name, array in arrays.items():
        if array.dtype.kind not in "iub" and not np.isfinite(array).all():
            raise UserError(f"{path}: {name} has values that are NaN or infinite")


def read_text(path: Path) -> str:
    """Reads UTF-8 text."""
    with reading(path):
        text = read_bytes(path, MAX_TEXT).decode()
        if text.startswith("\ufeff"):
            raise UserError("begins with a byte order mark; save it as UTF-8 without one")
        return text


def read_json(path: Path, kind: type = dict) -> Any:
    """Reads a JSON object, or a value of another `kind`."""
    with reading(path):
        return _of_kind(json.loads(read_text(path)), kind)


def read_yaml(path: Path, loader: str = "SafeLoader") -> dict[str, Any]:
    """Reads a YAML mapping, as `parse_yaml` does."""
    return parse_yaml(read_text(path), path, loader)


def parse_yaml(text: str, path: Path, loader: str = "SafeLoader") -> dict[str, Any]:
    """Returns the mapping that YAML without tags and aliases describes.

    With "BaseLoader" all scalars are strings.
    """
    loader = getattr(yaml, f"C{loader}", getattr(yaml, loader))  # in C, if PyYAML has that
    with reading(path):
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, loader)):
            raise ValueError("YAML with aliases")  # nested ones would print without an end
        return _of_kind(yaml.load(text, loader), dict)


def read_npz(path: Path) -> Arrays:
    """Reads the arrays of a NumPy archive, but no pickled objects."""
    with (
        reading(path),
        check_file(path).open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        size = sum(member.file_size for member in archive.zip.infolist())
        limit = MAX_INFLATION * path.stat().st_size
        if size > max(limit, MAX_TEXT):
            raise ValueError(f"an archive of {size:,} bytes in {path.stat().st_size:,}")
        arrays = dict(archive)
        check_finite(path, arrays)
    return arrays


def read_safetensors(path: Path) -> Arrays:
    """Reads the arrays of a safetensors file; bfloat16 becomes float32."""
    with reading(path):
        arrays = load_file(check_file(path))
        for name, array in arrays.items():
            arrays[name] = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
        check_finite(path, arrays)
    return arrays


def refuse_pickles(path: Path) -> None:
    """Raises UserError if the file, or one in the folder, has the name of a pickle."""
    for pattern in PICKLES:
        for pickle in [path] if path.match(pattern) else sorted(path.glob(pattern)):
            raise UserError(
                f"{pickle}: is a pickle, which can run any code when it is read; convert it to safetensors "
                "(Transformers: MarianMTModel.from_pretrained(...).save_pretrained(FOLDER))"
            )


def _of_kind(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} instead of a {kind.__name__}")
    return value
