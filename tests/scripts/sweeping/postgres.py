"""A PostgreSQL server for the tests, on a socket in a temporary folder, if it is installed."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDERS = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/bin"))


def programs() -> Path | None:
    """Returns the folder of `initdb` and `postgres`, or None."""
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    return next(
        (folder for folder in (*candidates, *FOLDERS) if (folder / "postgres").exists()), None
    )


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Runs a server during the block and yields its URL."""
    bin_, folder = programs(), Path(tempfile.mkdtemp(prefix="postgres-"))
    data = folder / "data"
    # The server refuses to run as root; Debian's package creates a user for it.
    user = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
    if user:
        shutil.chown(folder, "postgres", "postgres")

    def run(*command: str) -> None:
        result = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **user,
        )
        assert result.returncode == 0, command

    control = (str(bin_ / "pg_ctl"), "-D", str(data), "-w")
    try:
        run(str(bin_ / "initdb"), "-D", str(data), "-U", "tester", "-A", "trust", "--no-sync")
        run(
            *control,
            "-o",
            f"-k {folder} -c listen_addresses='' -c fsync=off",
            "-l",
            str(folder / "log"),
            "start",
        )
        try:
            yield f"postgresql://tester@/postgres?host={folder}"
        finally:
            run(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
