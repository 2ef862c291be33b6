"""The storages that a sweep can share: tests that take `storage` run once with each."""

import optuna
import pytest

from tests.scripts.sweeping import postgres

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="session")
def postgres_url():
    if postgres.programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request, tmp_path):
    """Its URL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'study.db'}"
    return request.getfixturevalue("postgres_url")
