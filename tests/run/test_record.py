"""The record of a run: its keys, and that resumed runs leave no trace in it."""

import contextlib
import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from tensorboardX.proto.event_pb2 import Event, SessionLog

from tests.training.tiny import tiny_config
from transformer.data.batches.loader import BatchStats
from transformer.decoding.forced_decoding import Attention
from transformer.run.record import Recorder
from transformer.run.trackers import CELL, GAP
from transformer.training.loss import LossSums
from transformer.training.progress import Progress, TrainingWindow, per_token_means
from transformer.training.samples import ValidationSample
from transformer.workdir import Workdir

# Keys of a line of `metrics.jsonl` that other programs may rely on.
ALWAYS = {"step", "split", "loss", "nll", "perplexity", "accuracy", "examples", "tokens"}
TRAIN = ALWAYS | {
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "padding_fraction",
    "seconds",
}

METRICS = {
    "sums": LossSums(*(jnp.float32(value) for value in (9, 6, 1, 3))),
    "learning_rate": jnp.float32(0.25),
    "gradient_norm": jnp.float32(2.5),
    "skipped": jnp.int32(0),
}


@pytest.fixture
def workdir(tmp_path) -> Workdir:
    return Workdir(tmp_path)


@contextlib.contextmanager
def recording(workdir: Workdir, progress: Progress) -> Iterator[Recorder]:
    """Yields the recorder of a start from a checkpoint with this progress."""
    with Recorder(workdir, tiny_config()) as recorder:
        recorder.on_start(progress)
        yield recorder


def record(workdir) -> list[dict]:
    return [json.loads(line) for line in workdir.metrics.read_text().splitlines()]


def events(path: Path) -> Iterator[Event]:
    """Yields the events of a TensorBoard file: length, checksum of the length, content, checksum of
    the content.
    """
    content = path.read_bytes()
    while content:
        (length,) = struct.unpack("Q", content[:8])
        yield Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]


def shown(workdir: Workdir) -> list[tuple[int, str, float]]:
    """Returns (step, curve, value) of each point that TensorBoard shows: a start hides earlier ones
    from its step.
    """
    points = []
    for path in sorted(workdir.tensorboard.iterdir()):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                points = [point for point in points if point[0] < event.step]
            points += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return points


def test_a_line_has_the_documented_keys(workdir):
    progress = Progress(step=7, examples=20, tokens=80, seconds=1.23456789)
    window = TrainingWindow({})
    window.add(METRICS, [BatchStats(sentences=2, source_tokens=6, target_tokens=4, positions=16)])
    with recording(workdir, Progress()) as recorder:
        recorder.write("train", progress, window.summary(0.0))
        recorder.write(
            "valid",
            progress,
            per_token_means({"loss": 1.0, "nll": 1.0, "correct": 0.0, "tokens": 1.0})
            | {"bleu": 3.0},
        )
    train, valid = record(workdir)
    assert set(train) >= TRAIN and set(valid) >= ALWAYS | {"bleu"}
    assert (train["step"], train["split"], train["examples"], train["tokens"]) == (
        7,
        "train",
        20,
        80,
    )
    assert (valid["split"], valid["seconds"]) == ("valid", 1.23457)
    assert (7, "train/loss", 3.0) in shown(workdir) and (7, "valid/bleu", 3.0) in shown(workdir)


def test_resuming_removes_the_lines_after_the_checkpoint(workdir):
    with recording(workdir, Progress()) as recorder:
        for step in (1, 2, 3, 4):
            for split in ("train", "valid"):
                recorder.write(split, Progress(step=step), {"loss": float(step)})
    with workdir.metrics.open("a") as file:
        file.write('{"step": 1, "split": "tr')
    before = [(1, "train", 1.0), (1, "valid", 1.0), (2, "train", 2.0), (2, "valid", 2.0)]
    with recording(workdir, Progress(step=2, validated_step=2)) as recorder:
        check_losses(workdir, before)
        recorder.write("train", Progress(step=3), {"loss": 3.5})
    check_losses(workdir, [*before, (3, "train", 3.5)])
    # A run may be killed after the validation of a step whose checkpoint was saved before it.
    with recording(workdir, Progress(step=2, validated_step=1)) as recorder:
        check_losses(workdir, before[:3])
        recorder.write("valid", Progress(step=2), {"loss": 2.5})
    check_losses(workdir, [*before[:3], (2, "valid", 2.5)])
    with recording(workdir, Progress()):
        check_losses(workdir, [])


def check_losses(workdir: Workdir, expected: list[tuple[int, str, float]]) -> None:
    """Checks that record and TensorBoard have each loss once, the record in this order."""
    assert [(line["step"], line["split"], line["loss"]) for line in record(workdir)] == expected
    assert sorted(shown(workdir)) == [
        (step, f"{split}/loss", loss) for step, split, loss in expected
    ]


def test_a_validation_has_the_norms_of_the_last_step(workdir):
    with recording(workdir, Progress()) as recorder:
        for step in (1, 2):
            recorder.after_step(
                Progress(step=step), {"module_norms": {"weight_norm/encoder": jnp.float32(step)}}
            )
        recorder.on_log(Progress(step=2), {"loss": 1.0})
        recorder.on_validation(Progress(step=2), {"loss": 1.0}, [])
        # repeats the validation without a step
        recorder.on_start(Progress(step=2, validated_step=1))
        recorder.on_validation(Progress(step=2), {"loss": 1.0}, [])
    train, valid = record(workdir)
    assert "weight_norm/encoder" not in train and "weight_norm/encoder" not in valid
    with recording(workdir, Progress(step=2, validated_step=2)) as recorder:
        recorder.after_step(
            Progress(step=3), {"module_norms": {"weight_norm/encoder": jnp.float32(7)}}
        )
        recorder.on_validation(Progress(step=3), {"loss": 1.0}, [])
    assert record(workdir)[-1]["weight_norm/encoder"] == 7.0
    assert (3, "valid/weight_norm/encoder", 7.0) in shown(workdir)


@pytest.mark.parametrize(
    "damage", ["{}", "[]", "7", '"step"', '{"step": null}', "\0\0", '{"step": 2, "spl']
)
def test_a_damaged_line_is_removed(workdir, damage):
    lines = [{"step": 1, "split": "train"}, {"step": 2, "split": "train"}]
    workdir.metrics.write_text(f"{json.dumps(lines[0])}\n{damage}\n{json.dumps(lines[1])}\n")
    with recording(workdir, Progress(step=2)):
        assert record(workdir) == lines


def test_samples_become_text_and_a_picture_of_all_heads(workdir):
    weights = np.zeros((2, 3, 4, 5), np.float32)
    weights[1, 2, 0, 4] = 1.0  # the last head of the last layer
    encoder, decoder = np.zeros((2, 3, 5, 5), np.float32), np.zeros((2, 3, 4, 4), np.float32)
    attention = Attention(("a",) * 5, ("b",) * 4, ("b",) * 4, encoder, decoder, weights)
    samples = [
        ValidationSample("*source*", "a reference", "a translation", attention),
        ValidationSample("2", "3", "4", None),
    ]
    with recording(workdir, Progress()) as recorder:
        recorder.on_validation(Progress(step=7), {}, samples)
    (path,) = workdir.tensorboard.iterdir()
    found = {
        value.tag: value
        for event in events(path)
        if event.step == 7
        for value in event.summary.value
    }
    assert found.keys() == {"sample 1/text_summary", "cross-attention 1", "sample 2/text_summary"}
    text = found["sample 1/text_summary"].tensor.string_val[0].decode()
    assert (
        text
        == "    source      *source*\n    reference   a reference\n    translation a translation\n"
    )
    picture = np.asarray(
        Image.open(io.BytesIO(found["cross-attention 1"].image.encoded_image_string))
    )[:, :, 0]
    height, width = 4 * CELL + GAP, 5 * CELL + GAP
    assert picture.shape == (2 * height, 3 * width)
    black = np.argwhere(picture == 0)
    (top, left), (bottom, right) = black.min(0), black.max(0)
    assert (top, left) == (height + GAP // 2, 2 * width + GAP // 2 + 4 * CELL)
    assert (bottom - top + 1, right - left + 1) == (CELL, CELL)
