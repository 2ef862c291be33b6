"""Damaged `metrics.jsonl` files: resuming keeps the whole lines and drops the rest."""

import contextlib
import json

import pytest
from hypothesis import example, given

from tests.hostile.inputs import contents, damaged
from tests.training.tiny import tiny_config
from transformer.run.record import Recorder, read_record
from transformer.training.progress import Progress
from transformer.workdir import Workdir

# steps in the checkpoint: the validation of step 6 must be repeated
REACHED = {"train": 6, "valid": 4}
LINES = [
    {
        "step": step,
        "split": split,
        "loss": 9.0 / step,
        "examples": 2 * step,
        "tokens": 3 * step,
        "seconds": 0.1 * step,
    }
    for step in (2, 4, 6, 8)
    for split in ("train", "valid")
]
RECORD = "".join(json.dumps(line) + "\n" for line in LINES).encode()


def whole_lines(content: bytes) -> list[dict]:
    """Returns the members of LINES in `content` up to the steps in REACHED."""
    lines = []
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            lines.append(json.loads(line.decode()))
    return [line for line in lines if line in LINES and line["step"] <= REACHED[line["split"]]]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Workdir:
    return Workdir(tmp_path_factory.mktemp("record"))


@given(damaged(RECORD) | contents)
@example(RECORD.replace(b"\n", b"\n\xff\xfe\n"))
@example(RECORD[:-20])
@example(b"[" * 100_000 + b"\n" + RECORD)
@example(b'{"step": ' + b"1" * 5000 + b"}\n" + RECORD)
def test_resuming_keeps_the_whole_lines_of_the_record(workdir, content):
    workdir.metrics.write_bytes(content)
    with Recorder(workdir, tiny_config()) as recorder:
        recorder.on_start(Progress(step=REACHED["train"], validated_step=REACHED["valid"]))
        kept, rewritten = read_record(workdir.metrics), workdir.metrics.read_bytes()
        assert all(line["step"] <= REACHED[line["split"]] for line in kept)
        assert [line for line in kept if line in LINES] == whole_lines(content)
        recorder.write("train", Progress(step=7), {"loss": 1.0})
    assert (
        workdir.metrics.read_bytes().startswith(rewritten)
        and read_record(workdir.metrics)[-1]["step"] == 7
    )
