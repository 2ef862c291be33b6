"""Speeds: what is counted, and the devices whose figures are known."""

import jax
import pytest

from configs import base
from scripts.benchmarking.tasks import Size, training_task
from scripts.planning.devices import ACCELERATORS
from scripts.verification import speed


class Device:
    def __init__(self, kind: str):
        self.device_kind = kind


def test_figures_are_found_by_the_name_of_the_device():
    names = {
        "NVIDIA H200": "h200",
        "NVIDIA H100 80GB HBM3": "h100",
        "TPU v5e": "v5e",
        "TPU v5": "v5p",
    }
    for kind, name in names.items():
        assert speed.find_target([Device(kind)] * 2).kind is ACCELERATORS[name]
        assert speed.find_target([Device(kind)] * 2).count == 2
    for other in ("NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "cpu"):
        assert speed.find_target([Device(other)]) is None


def test_tokens_are_counted_without_padding(monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0.01)
    size = Size(1, 16, 32, 2, 50, pairs=4, length=10)
    measured = speed.measure_step("tiny", base, size, jax.devices()[:1])
    task = training_task(size)
    tokens = sum(len(row) for side in ("source", "target") for row in task[side])
    assert (
        measured.tokens_per_second * measured.seconds == pytest.approx(tokens)
        and tokens < 2 * 4 * 10
    )
    assert (
        measured.memory > 0
        and measured.compilation > measured.seconds
        and measured.utilization is None
    )
