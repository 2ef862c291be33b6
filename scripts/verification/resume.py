"""A small run that is killed and resumed, beside an uninterrupted run.

Each run is a separate process on the device.
"""

import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.verification.outcomes import Outcome
from scripts.verify_resume import KillableRun
from transformer.run.record import read_record
from transformer.support.errors import UserError

# The changes to configs/quickstart.py: one shape of batches, validation without a search, and
# frequent checkpoints, so that a kill can interrupt one.
SETTINGS = {
    "model.num_layers": "1",
    "model.dropout": "0.1",
    "model.dtype": "auto",
    "data.synthetic_examples": "5000",
    "batch.max_buckets": "1",
    "optimizer.warmup_steps": "20",
    "training.steps": "200",
    "training.log_every": "20",
    "training.eval_every": "100",
    "training.eval_bleu": "false",
    "training.trackers": "",
    "checkpoint.every": "20",
    "checkpoint.best_metric": "loss",
}
# The kill waits for this checkpoint.
SAVED = "20"
# A message in the log of the second start.
RESUMED = "Resuming from"
# Without this flag GPUs sum gradients in any order.
DETERMINISTIC = "--xla_gpu_exclude_nondeterministic_ops=true"


def check_resume() -> Iterator[Outcome]:
    """Yields the number of results that differ after a kill, and the time that steps wait for data.

    The results are the parts of the last checkpoint and the record.
    """
    # The runs inherit the flag.
    os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), DETERMINISTIC])
    with tempfile.TemporaryDirectory() as folder:
        uninterrupted, killed = [
            KillableRun(Path(folder) / name, "configs/quickstart.py", list(SETTINGS.items()))
            for name in ("whole", "killed")
        ]

        uninterrupted.finish()
        if not killed.kill(lambda run: (run.workdir.checkpoints / SAVED).exists(), delay=0.0):
            raise UserError("the run was complete before it could be killed")
        killed.finish()
        if RESUMED not in killed.output.read_text():
            raise UserError("the killed run began again instead of resuming")

        expected = uninterrupted.digests()
        digests = killed.digests()
        record = read_record(uninterrupted.workdir.metrics)

    differing = [name for name in expected if digests.get(name) != expected[name]]
    suffix = f" ({', '.join(differing)})" if differing else ""
    name = f"parts of a killed and resumed run that differ{suffix}"
    yield Outcome(name, float(len(differing)), 0.0)
    waiting = [line["waiting_fraction"] for line in record if line["split"] == "train"]
    name = "fraction of the time between log lines that waits for data"
    yield Outcome(name, statistics.median(waiting), 0.5)
