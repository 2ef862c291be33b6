"""The names of systems, by hand."""

import pytest

from scripts.results.systems import System, describe_settings


@pytest.mark.parametrize(
    ("differences", "described"),
    [
        ({}, ""),
        ({"model.dropout": 0.1}, "dropout=0.1"),
        ({"training.init_from": "", "step": 600}, "init_from='', step=600"),
        ({"data.name": "wmt14", "optimizer.name": "muon"}, "data.name=wmt14, optimizer.name=muon"),
        ({"a": 1, "b": 2, "c": 3}, ""),
        ({"evaluation": "/a/long/path.json"}, ""),
        ({"shortlist": "01234567"}, "shortlist=01234567"),
        ({"shortlist": None}, "shortlist=None"),
    ],
)
def test_a_system_is_named_after_its_settings_if_they_are_few(differences, described):
    assert describe_settings(differences) == described
    assert System("A", differences, ()).name == (f"A: {described}" if described else "A")
