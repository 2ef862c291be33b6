"""Configurations that remember which of their keys the code has read.

A read counts where a file of `transformer/` takes the value of one key, `config.model.d_model`. Copying or passing on a
whole group does not count, nor does what checks, saves and compares configurations.
"""

import dis
import sys
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import ml_collections
import pytest

from transformer.config import keys as config_keys
from transformer.config import loading as configuration

PACKAGE = Path(config_keys.__file__).resolve().parent
NOT_USE = {"command.py", "config.py", "config_combinations.py", "config_keys.py", "config_rules.py", "workdir.py"}


class RecordedConfig(ml_collections.FrozenConfigDict):
    """Made by `recorded` alone, out of a configuration that is complete."""

    def __getattr__(self, name: str):
        return self._read(name, super().__getattr__(name), sys._getframe(1))

    def __getitem__(self, name: str):
        value, reader = super().__getitem__(name), sys._getframe(1)
        instruction = _instruction(reader)
        # dict(group) and f(**group) come here too, by other instructions than group["key"].
        return self._read(name, value, reader) if instruction in ("BINARY_SUBSCR", "BINARY_OP") else value

    def _read(self, name: str, value, reader: FrameType):
        file = Path(reader.f_code.co_filename).resolve()
        if PACKAGE in file.parents and file.name not in NOT_USE and not isinstance(value, ml_collections.ConfigDict):
            self._reads.add(f"{self._group}{name}")
        return value


def _instruction(frame: FrameType) -> str:
    """What the frame is doing. In code that has run often it may seem to be at what the interpreter keeps behind it."""
    code, at = frame.f_code.co_code, frame.f_lasti
    while dis.opname[code[at]] == "CACHE":
        at -= 2
    return dis.opname[code[at]]


def recorded(config: ml_collections.FrozenConfigDict, reads: set[str], group: str = "") -> RecordedConfig:
    """The same configuration, which adds to `reads` every key that is read."""
    for key, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            recorded(value, reads, f"{group}{key}.")
    object.__setattr__(config, "_group", group)
    object.__setattr__(config, "_reads", reads)
    object.__setattr__(config, "__class__", RecordedConfig)
    return config


@contextmanager
def recording():
    """A set that fills with the keys that commands read while the context lasts."""
    reads: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configuration, "freeze", lambda flat: recorded(config_keys.freeze(flat), reads))
        yield reads
