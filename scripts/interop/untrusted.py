"""Safe reading of files from other people.

Sizes are checked against the file before memory is allocated, and no code in a file runs. If a file
is missing or damaged, every function raises UserError: one line that begins with the file. So does
any code, such as a Cursor, in a block `with reading(path)`.
"""

import contextlib
import json
import lzma
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
from google.protobuf.message import DecodeError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from scripts.interop.portable import Arrays
from transformer.support.errors import MALFORMED, UserError

MAX_TEXT = 1 << 26  # bytes of a JSON, YAML or text file, and of a SentencePiece model
MAX_MODEL = 1 << 33  # bytes of a file of weights
MAX_WEIGHTS = 1 << 40  # the same for safetensors, whose size in memory readers check
# The content of an archive is at most MAX_TEXT, or this many times as large as the archive.
MAX_INFLATION = 16
LFS_POINTER = b"version https://git-lfs"  # begins the small text that replaces a file
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
DAMAGED = (
    *MALFORMED,
    EOFError,
    IndexError,
    StopIteration,
    OverflowError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    SafetensorError,
    DecodeError,
    yaml.YAMLError,
    SyntaxError,
    # NumPy parses the header of an array as a Python expression.
    tokenize.TokenError,
)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Converts errors from a missing or damaged file in the block to a UserError with its path."""
    try:
        yield
    except UserError as error:
        # Nested blocks may have added the path.
        prefix = "" if str(error).startswith(str(path)) else f"{path}: "
        raise UserError(f"{prefix}{error}") from None
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror or error}") from None
    except DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyError):
            reason = f"no {error}"
        raise UserError(f"{path}: damaged ({reason:.120})") from None


def check_file(path: Path, limit: int = MAX_MODEL) -> Path:
    """Returns the path. Raises UserError unless it is a regular file of at most `limit` bytes.

    A link out of its folder is an error, because it may lead to a private file of the user. Pipes
    and devices are errors, because reading them may never end.
    """
    with reading(path):
        target = path.resolve(strict=True)
        folder = path.parent.resolve()
        # In the cache of Hugging Face's hub, snapshots/NAME/ has links into blobs/.
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


def is_readable(path: Path, limit: int = MAX_MODEL) -> bool:
    """True for a file that `check_file` accepts."""
    try:
        return check_file(path, limit) == path
    except UserError:
        return False


def read_bytes(path: Path, limit: int = MAX_TEXT) -> bytes:
    """Reads a file of at most `limit` bytes."""
    return check_file(path, limit).read_bytes()


class Cursor:
    """A position in the content of a binary file with little-endian numbers."""

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
        """Returns the next name, of `size` bytes. These may include a NUL at its end."""
        return bytes(self.take(size)).decode().removesuffix("\0")

    def array(self, dtype: Any, shape: Sequence[int]) -> np.ndarray:
        """Returns the next array, a view of the content."""
        dtype = np.dtype(dtype)
        content = self.take(math.prod(shape) * dtype.itemsize)
        return np.frombuffer(content, dtype).reshape(shape)


def check_finite(path: Path, arrays: Arrays) -> None:
    """Raises UserError, with the name of the array, if an array has a NaN or an infinity."""
    for name, array in arrays.items():
        if array.dtype.kind in "iub":
            continue
        # Models are float32, in which float64 may overflow.
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(array.astype(np.float32, copy=False)).all()
        if not is_finite:
            raise UserError(f"{path}: {name} has values that are NaN or infinite")


def read_text(path: Path) -> str:
    """Reads UTF-8 text."""
    with reading(path):
        text = read_bytes(path, MAX_TEXT).decode()
        # The mark would become part of the first line.
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
    # PyYAML may have been built without its loaders in C, which are faster.
    loader = getattr(yaml, f"C{loader}", getattr(yaml, loader))
    with reading(path):
        # Nested aliases can expand to any size.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, loader)):
            raise ValueError("YAML with aliases")
        return _of_kind(yaml.load(text, loader), dict)


def read_npz(path: Path) -> Arrays:
    """Reads the arrays of a NumPy archive, but no pickled objects."""
    with (
        reading(path),
        check_file(path).open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        # A small archive of zeros could fill the memory.
        size = sum(member.file_size for member in archive.zip.infolist())
        packed_size = path.stat().st_size
        if size > max(MAX_INFLATION * packed_size, MAX_TEXT):
            raise ValueError(f"an archive of {size:,} bytes in {packed_size:,}")
        arrays = dict(archive)
        check_finite(path, arrays)
    return arrays


def count_elements(path: Path) -> int:
    """Returns the number of elements of all arrays in a safetensors file, from its header."""
    with reading(path), safe_open(check_file(path, MAX_WEIGHTS), "numpy") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.offset_keys())


def read_safetensors(path: Path) -> Arrays:
    """Reads the arrays of a safetensors file; bfloat16 becomes float32."""
    with reading(path):
        arrays = load_file(check_file(path, MAX_WEIGHTS))
        for name, array in arrays.items():
            if array.dtype.name == "bfloat16":
                arrays[name] = array.astype(np.float32)
        check_finite(path, arrays)
    return arrays


def refuse_pickles(path: Path) -> None:
    """Raises UserError if the file, or one in the folder, has the name of a pickle."""
    for pattern in PICKLES:
        pickles = [path] if path.match(pattern) else sorted(path.glob(pattern))
        if pickles:
            raise UserError(
                f"{pickles[0]}: is a pickle, which can run any code when it is read; convert it to "
                "safetensors (Transformers: "
                "AutoModelForSeq2SeqLM.from_pretrained(...).save_pretrained(FOLDER)), "
                "and copy the tokenizer's files to that folder"
            )


def _of_kind(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} instead of a {kind.__name__}")
    return value
