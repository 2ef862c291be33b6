"""python -m tests.run.full_disk FOLDER: trains on a disk that fills up and is then enlarged, and
prints JSON.

It mounts file systems in the folder, so it must run where that is allowed: `unshare --map-root-user
--mount`.
"""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from tests.checkpoints.saved_runs import read_run
from tests.training.tiny import flags, record
from transformer.checkpoints.restore import choose_step, steps_in

ALONE = ["unshare", "--map-root-user", "--mount"]
SIZES = ("64k", "1m")  # of the disk: too small for a checkpoint; large enough for a few
# Checkpoints of keep_every are never deleted, so the disk fills up.
SETTINGS = {"training__steps": 12, "training__log_every": 1}
SETTINGS |= {"checkpoint__every": 1, "checkpoint__keep": 1, "checkpoint__keep_every": 2}


def may_mount() -> str | None:
    """Returns why this user cannot mount a private file system, or None."""
    try:
        done = subprocess.run(
            [*ALONE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True
        )
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else None


def train(workdir: Path, cache: Path) -> tuple[int, str]:
    """Trains, and returns exit code and standard error."""
    argv = [
        sys.executable,
        "-m",
        "transformer.train",
        *flags(workdir, data__cache_dir=cache, **SETTINGS),
    ]
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=300)
    return done.returncode, done.stderr


def same(tree, other) -> bool:
    return all(
        np.array_equal(*leaves)
        for leaves in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    )


def on_a_disk_of(size: str, folder: Path, straight: Path) -> dict:
    """Describes how a run ends there, and compares its results with more space to those of
    `straight`.
    """
    workdir, cache = folder / "run", folder.parent / "cache"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    code, errors = train(workdir, cache)
    saved = steps_in(workdir / "checkpoints")
    found = {
        "code": code,
        "errors": errors,
        "saved": saved,
        "loaded": [choose_step(workdir, "last")] if saved else [],
        "lines": [line["step"] for line in record(workdir) if line["split"] == "train"]
        if saved
        else [],
    }
    subprocess.run(["mount", "-o", "remount,size=16m", folder], check=True)
    code, errors = train(workdir, cache)
    checkpoints, others = (steps_in(each / "checkpoints") for each in (workdir, straight))
    return found | {
        "code_with_room": code,
        "errors_with_room": errors,
        "same_parameters": same(*(read_run(each) for each in (workdir, straight))),
        "same_record": record(workdir) == record(straight),
        "same_checkpoints": checkpoints == others,
    }


def main(folder: Path) -> None:
    straight = folder / "straight"
    code, errors = train(straight, folder / "cache")
    assert code == 0, errors
    print(json.dumps({size: on_a_disk_of(size, folder / size, straight) for size in SIZES}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
