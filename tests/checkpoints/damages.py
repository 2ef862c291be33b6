"""Ways in which a checkpoint may be damaged or forged."""

import json
import shutil
from pathlib import Path

import tensorstore as ts

from transformer.checkpoints import checksums

HUGE = (2**20, 2**20)  # 4 TiB of float32


def truncate(checkpoint: Path) -> None:
    for path in checkpoint.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rewrite_record(checkpoint: Path, **changes) -> None:
    """Changes entries of the record and updates all checksums."""
    contents = {key: value for key, value in checksums.read(checkpoint).items() if key != "files"}
    checksums.write(checkpoint, contents | changes)


def declare_huge(checkpoint: Path) -> None:
    """Makes the checkpoint's matrix declare 4 TiB, none of which is stored, and updates the
    checksums.
    """
    base = {"driver": "file", "path": f"{checkpoint}/parameters/"}
    store = ts.KvStore.open({"driver": "ocdbt", "base": base}).result()
    name = next(
        key for key in map(bytes.decode, store.list().result()) if key.endswith("kernel/.zarray")
    )
    metadata = json.loads(store.read(name).result().value)
    store.write(name, json.dumps(metadata | {"shape": HUGE, "chunks": HUGE}).encode()).result()
    rewrite_record(checkpoint)


DAMAGES = {
    "no parameters": lambda path: shutil.rmtree(path / "parameters"),
    "truncated": truncate,
    "truncated arrays": lambda path: truncate(path / "parameters" / "d"),
    "a flipped bit": lambda path: flip_a_bit(
        max(path.glob("parameters/d/*"), key=lambda file: file.stat().st_size)
    ),
    "malformed metadata": lambda path: (path / "parameters" / "_METADATA").write_text("{"),
    "empty": lambda path: (shutil.rmtree(path), path.mkdir()),
    "no record": lambda path: (path / checksums.NAME).unlink(),
    "malformed record": lambda path: (path / checksums.NAME).write_text("[1"),
    "another record": lambda path: (path / checksums.NAME).write_text("[]"),
    "a flipped bit in the record": lambda path: flip_a_bit(path / checksums.NAME),
}
