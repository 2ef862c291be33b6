"""Commands keep the memory that they free, where JAX computes on CPUs."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

# Fills a buffer of 256 MiB, of the kind that XLA allocates, frees it, and prints the size of the
# process in bytes.
PROGRAM = """
import ctypes, resource
from transformer.config import cli

def main(arguments):
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    block = libc.malloc(ctypes.c_size_t(256 << 20))
    ctypes.memset(block, 1, 256 << 20)
    libc.free(ctypes.c_void_p(block))
    print(int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize())

{start}
"""
AS_COMMAND = 'cli.run(cli.Parser("test", "Test."), main)'

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries are left unchanged"
)


def keeps_memory(start: str, environment: dict[str, str]) -> bool:
    argv = [sys.executable, "-c", PROGRAM.format(start=start)]
    others = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        argv, cwd=REPOSITORY, capture_output=True, check=True, env=others | environment
    )
    return int(done.stdout) >= 256 << 20


def test_commands_keep_freed_memory():
    assert keeps_memory(AS_COMMAND, {"JAX_PLATFORMS": "cpu"})
    assert not keeps_memory("main(None)", {"JAX_PLATFORMS": "cpu"})


def test_commands_on_accelerators_return_freed_memory():
    assert not keeps_memory(AS_COMMAND, {"JAX_PLATFORMS": "cuda,cpu"})


def test_an_installed_accelerator_plugin_decides_unless_jax_platforms_does(tmp_path: Path):
    package = tmp_path / "a_plugin-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[jax_plugins]\na_plugin = a_plugin\n")
    installed = {"PYTHONPATH": str(tmp_path)}
    assert not keeps_memory(AS_COMMAND, installed)
    assert keeps_memory(AS_COMMAND, installed | {"JAX_PLATFORMS": "cpu"})
