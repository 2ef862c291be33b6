"""A small run that is killed and resumed, beside one that is not.

Each is a separate process on the device.
"""

import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.verification.outcomes import Outcome
from scripts.verify_resume import Training
from transformer.run.record import read_record
from transformer.support.errors import UserError

# Of configs/quickstart.py: one shape, validation without a search, and checkpoints that a kill can
# interrupt.
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
SAVED = "20"  # a checkpoint of the killed run
RESUMED = "Resuming from"  # in the log of its second start
# Without it sums of gradients on GPUs are in any order.
DETERMINISTIC = "--xla_gpu_exclude_nondeterministic_ops=true"


def check_resume() -> Iterator[Outcome]:
    """Yields how many parts of the last checkpoint and of the record differ, and how long steps
    wait for data.
    """
    file = "configs/quickstart.py"
    overrides = list(SETTINGS.items())
    os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), DETERMINISTIC])
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = (
            Training(Path(folder) / name, file, overrides) for name in ("whole", "killed")
        )
        whole.finish()
        if not killed.kill(lambda run: (run.workdir.checkpoints / SAVED).exists(), delay=0.0):
            raise UserError("the run was complete before it could be killed")
        killed.finish()
        if RESUMED not in killed.output.read_text():
            raise UserError("the killed run began again instead of resuming")
        expected = whole.digests()
        digests = killed.digests()
        waiting = [
            line["waiting_fraction"]
            for line in read_record(whole.workdir.metrics)
            if line["split"] == "train"
        ]
    differing = [name for name in expected if digests.get(name) != expected[name]]
    named = f" ({', '.join(differing)})" if differing else ""
    yield Outcome(
        f"parts of a killed and resumed run that differ{named}", float(len(differing)), 0.0
    )
    yield Outcome(
        "fraction of the time between log lines that waits for data",
        statistics.median(waiting),
        0.5,
    )
