"""A small run that is killed and resumed, beside one that is not. Each is a separate process on the device."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.verification.outcomes import Outcome
from scripts.verify_resume import Training
from transformer.config import loading
from transformer.errors import UserError
from transformer.run.record import read_record

# Of configs/quickstart.py: one shape, validation without a search, and checkpoints that a kill can interrupt.
SETTINGS = {
    "model.num_layers": "1",
    "model.dropout": "0.1",
    "model.dtype": "auto",
    "data.synthetic_examples": "5000",
    "batch.max_buckets": "1",
    "optimizer.warmup_steps": "20",
    "training.steps": "120",
    "training.log_every": "20",
    "training.eval_every": "60",
    "training.eval_bleu": "false",
    "training.trackers": "",
    "checkpoint.every": "20",
    "checkpoint.best_metric": "loss",
}
# Without it sums of gradients on GPUs are in any order.
DETERMINISTIC = "--xla_gpu_exclude_nondeterministic_ops=true"


def check_resume() -> Iterator[Outcome]:
    """Yields how many parts of the last checkpoint and of the record differ, and how long steps wait for data."""
    flags = ["--config=configs/quickstart.py", *(f"--config.{key}={value}" for key, value in SETTINGS.items())]
    config = loading.load_file("configs/quickstart.py", list(SETTINGS.items()))
    os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), DETERMINISTIC])
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = (Training(Path(folder) / name, config, flags) for name in ("whole", "killed"))
        whole.finish()
        if killed.kill("writing", delay=0.01) is None:
            raise UserError("the run ended before it was killed")
        killed.finish()
        expected, found = whole.digests(), killed.digests()
        lines = [line for line in read_record(whole.workdir.metrics) if line["split"] == "train"]
    differing = [name for name in expected if found.get(name) != expected[name]]
    named = f" ({', '.join(differing)})" if differing else ""
    yield Outcome(f"parts of a killed run that differ{named}", float(len(differing)), 0.0)
    yield Outcome("fraction of a run's time that waits for data", lines[-1]["waiting_fraction"], 0.5)
