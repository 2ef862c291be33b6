"""The storages of a sweep: tests with the fixture `storage` run with SQLite and PostgreSQL.

Tests that start processes use `shared_storage`, which is PostgreSQL only in the slow suite.
"""

from pathlib import Path

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
    return url_of(request, tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def shared_storage(request, tmp_path):
    return url_of(request, tmp_path)


def url_of(request, folder: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder / 'study.db'}"
    return request.getfixturevalue("postgres_url")
