"""A stand-in for training: python -m tests.scripts.sweeping.fake_trial FOLDER STEPS SECONDS SLOPE

Each step takes SECONDS and adds a line to the metrics, after those of earlier attempts. SIGTERM
exits with 0. With "fail" or "full" as the slope it fails.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

ERRORS = {
    "fail": "out of luck",
    "full": "the disk is full (no space); make room and run the same command again",
}


def main() -> None:
    folder, steps, seconds, slope = (
        Path(sys.argv[1]),
        int(sys.argv[2]),
        float(sys.argv[3]),
        sys.argv[4],
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / "metrics.jsonl"
    (folder / "pid").write_text(str(os.getpid()))
    if hasattr(os, "sched_getaffinity"):
        (folder / "processors").write_text(str(os.sched_getaffinity(0)))
    with (folder / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if slope in ERRORS:
        print("first line", file=sys.stderr)
        print(f"error: {ERRORS[slope]}", file=sys.stderr)
        sys.exit(2)
    done = len(record.read_text().splitlines()) if record.exists() else 0
    for step in range(done + 1, steps + 1):
        time.sleep(seconds)
        with record.open("a") as file:
            file.write(
                json.dumps({"step": step, "split": "valid", "nll": 10 - float(slope) * step}) + "\n"
            )
    (folder / "complete.json").touch()


if __name__ == "__main__":
    main()
