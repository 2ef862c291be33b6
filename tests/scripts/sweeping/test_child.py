"""Child processes compute as commands do: threads reuse the memory that others have freed."""

import os
import platform
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

# Each of two threads fills and frees a buffer ten times, as XLA's threads do. Prints how often the
# second one got its pages from the kernel.
PROGRAM = """
import ctypes, resource, threading
from transformer.config import cli

SIZE = 100 << 20

def work():
    libc, before = ctypes.CDLL(None), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    libc.malloc.restype = ctypes.c_void_p
    for _ in range(10):
        block = libc.malloc(ctypes.c_size_t(SIZE))
        ctypes.memset(block, 1, SIZE)
        libc.free(ctypes.c_void_p(block))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    faults.append((after - before) / (SIZE / resource.getpagesize()))

faults = []

def main(arguments):
    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    print(faults[1])

cli.run(cli.Parser("test", "Test."), main)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries are left unchanged"
)
@pytest.mark.parametrize(
    "command", [["program"], ["scripts.sweeping.child", "program"]], ids=["command", "child"]
)
def test_threads_reuse_freed_memory(tmp_path, command):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(tmp_path)}
    options = {
        "cwd": REPOSITORY,
        "env": environment,
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
    }
    with subprocess.Popen([sys.executable, "-m", *command], **options) as process:
        output = process.stdout.read()
    assert process.returncode == 0 and float(output) < 0.5
