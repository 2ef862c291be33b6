"""Fixtures of the tests of scripts."""

import pytest

from tests.scripts.evaluated import SENTENCES, add_evaluation, damage, make_run


@pytest.fixture
def evaluated(tmp_path):
    """Makes a workdir with one evaluation, or adds one to an existing workdir."""

    def make(
        name: str, amount: float = 0.1, evaluation: str = "valid-step9", saved: dict | None = None, **changes: str
    ):
        path = tmp_path / name
        if not path.exists():
            make_run(path, **changes)
        add_evaluation(path, evaluation, damage(SENTENCES, amount, seed=len(name)), SENTENCES, **(saved or {}))
        return path

    return make
