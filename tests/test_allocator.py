"""Memory that was freed stays with the process of a command."""

import platform
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

# Writes to 256 MiB of a kind that XLA asks for, frees them, and prints how many bytes the process still has.
PROGRAM = """
import ctypes, resource
from transformer import command

def main(arguments):
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    block = libc.malloc(ctypes.c_size_t(256 << 20))
    ctypes.memset(block, 1, 256 << 20)
    libc.free(ctypes.c_void_p(block))
    print(int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize())

{start}
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
@pytest.mark.parametrize(
    ("start", "keep"), [('cli.run(cli.Parser("test", "Test."), main)', True), ("main(None)", False)]
)
def test_freed_memory_stays_with_a_command(start, keep):
    command = [sys.executable, "-c", PROGRAM.format(start=start)]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True)
    assert (int(finished.stdout) >= 256 << 20) is keep
