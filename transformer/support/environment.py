"""The record of a run's environment, and the fingerprints of its data."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import logging

from transformer.support import files
from transformer.support.errors import UserError
from transformer.support.processor import auto_dtype, processor_name

REPOSITORY = Path(__file__).resolve().parents[2]
# Characters of uncommitted changes that are recorded.
MAX_DIFF = 100_000
# The packages that results depend on. A test compares them with requirements.txt, which an
# installation lacks.
PACKAGES = (
    "flax",
    "jax",
    "jaxlib",
    "ml_collections",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "sacrebleu",
    "scipy",
    "sentencepiece",
    "tensorflow-datasets",
)
# The file with the fingerprints, so that a run resumes with the same vocabulary and corpora.
CONTENTS = "contents.json"
VOCABULARY = "the vocabulary"
TRAINING_CORPUS = "the training corpus"
VALIDATION_CORPUS = "the validation corpus"
FINGERPRINTS = (VOCABULARY, TRAINING_CORPUS, VALIDATION_CORPUS)


def installed_version(package: str) -> str | None:
    """Returns the version of a package, or None if it is not installed, such as one of an extra."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_environment() -> dict[str, Any]:
    """Returns commit, uncommitted changes, packages, devices and command line.

    The commit is None unless git tracks the code. Uncommitted changes include new modules of
    `transformer`, but only their names.
    """
    # Imported here, since commands that compute nothing only need `now`.
    import jax

    commit = None
    diff = None
    untracked = None
    # An installed package may be inside the repository of another project.
    if git("ls-files", "--error-unmatch", "transformer") is not None:
        commit = git("rev-parse", "HEAD")
        diff = git("diff", "HEAD", "--no-ext-diff", "--no-color")
        untracked = git("ls-files", "--others", "--exclude-standard", "transformer")
    environment = {
        "started": now(),
        "commit": commit and commit.strip(),
        "uncommitted_changes": None if diff is None else bool(diff or untracked),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "cpu_count": os.cpu_count(),
        "devices": [device.device_kind for device in jax.devices()],
        "auto_dtype": auto_dtype(jax.default_backend()),  # of matmuls with model.dtype=auto
        "processes": jax.process_count(),
        "packages": {name: installed_version(name) for name in PACKAGES},
    }
    if untracked:
        environment["untracked"] = untracked.splitlines()
    if diff:
        environment["diff"] = diff[:MAX_DIFF]
        if len(diff) > MAX_DIFF:
            note = f"\n[cut: the first {MAX_DIFF:,} of {len(diff):,} characters]\n"
            environment["diff"] += note
    return environment


def read_environment(path: Path) -> dict[str, Any] | None:
    """Returns the `environment.json` of a run; None if it was deleted.

    Raises UserError if it is damaged.
    """

    def check(record: dict[str, Any]) -> dict[str, Any]:
        # Other code reads these values without checking them again.
        for start in record["resumed"]:
            if any(len(values) != 2 for values in start["changes"].values()):
                raise ValueError("a change must have two values")
        if not all("commit" in start for start in (record, *record["resumed"])):
            raise ValueError("a start must have a commit")
        return record

    if not path.exists():
        return None
    return files.read_json(path, check, "delete it to continue without it")


def check_fingerprints(workdir: Path, fingerprints: Mapping[str, str]) -> None:
    """Raises UserError if fingerprints differ from the recorded ones, or the record is damaged."""
    path = workdir / CONTENTS
    if not path.exists():
        return
    recorded = files.read_json(
        path, lambda record: {name: record[name] for name in fingerprints}, "delete it to continue"
    )
    for name, digest in fingerprints.items():
        if recorded[name] != digest:
            raise UserError(
                f"{path}: {name} is not the one that this run began with; "
                "restore the data and tokenizer*.model (training makes a deleted one again), "
                "or name another --workdir"
            )


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def git(*arguments: str) -> str | None:
    """Returns the output of a git command in this repository; None if it fails.

    Warns if git does not trust the folder's owner.
    """
    try:
        result = subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, check=True
        )
    except OSError:
        return None
    except subprocess.CalledProcessError as error:
        # For example, the folder is mounted by a container.
        if b"dubious ownership" in error.stderr:
            logging.warning(
                "The commit is unknown: git config --global --add safe.directory %s", REPOSITORY
            )
        return None
    return result.stdout.decode(errors="replace")
