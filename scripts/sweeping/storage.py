"""The database that holds a sweep's ledger: one of Optuna's relational storages."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.storages import RDBStorage

from transformer.errors import UserError

HEARTBEAT = 10  # seconds between heartbeats
FAILURES = (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError)


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turns failures of the storage in the block into UserErrors that name it, without its password."""
    try:
        yield
    except FAILURES as error:
        raise UserError(
            f"--storage={shown(url)}: {reason(error)}; the same command goes on once it is mended"
        ) from error


def reason(error: Exception) -> str:
    """Why the storage failed, in a line."""
    cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
    return str(getattr(cause, "orig", None) or cause or error).splitlines()[0]


def shown(url: str) -> str:
    """The URL without its password. Raises UserError if it is none."""
    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        allowed = "a URL such as postgresql://user:password@host/database or sqlite:///file.db"
        raise UserError(f"--storage: must be {allowed}") from None


def reach(url: str) -> None:
    """Connects to a database, and makes nothing in it. Raises UserError if that cannot be done."""
    try:
        with storage_errors(url):
            engine = sqlalchemy.create_engine(url, **_options(url))
            engine.connect().close()
            engine.dispose()
    except ImportError as error:
        raise UserError(f"--storage={shown(url)}: {error}; install its driver") from error


def _options(url: str) -> dict[str, Any]:
    """For SQLAlchemy's engine: seconds to wait for another process's writing, or for the server."""
    if _is_sqlite(url):
        return {"connect_args": {"timeout": 60}}
    return {"connect_args": {"connect_timeout": 10}, "pool_pre_ping": True}


def _is_sqlite(url: str) -> bool:
    return sqlalchemy.engine.make_url(url).get_backend_name() == "sqlite"


def open_storage(url: str, grace: float, make: bool) -> RDBStorage:
    """Whose rows are silent after `grace` seconds without a heartbeat. Without `make` no table or file is made.

    Raises UserError for a database that is not there, lacks its driver, or is of another version of Optuna.
    """
    is_sqlite = _is_sqlite(url)
    if is_sqlite and not make and not Path(sqlalchemy.engine.make_url(url).database or "").exists():
        raise UserError(f"--storage={shown(url)}: no such file; put the sweep's ledger back")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of heartbeats
            # Optuna fills in what stands in braces.
            escaped = url.replace("{", "{{").replace("}", "}}")
            storage = RDBStorage(
                escaped,
                _options(url),
                heartbeat_interval=HEARTBEAT,
                grace_period=grace,
                skip_table_creation=not make,
            )
    except (ImportError, RuntimeError) as error:
        raise UserError(f"--storage={shown(url)}: {str(error).splitlines()[0]}") from error
    if is_sqlite:
        storage.remove_session()
        _lock_when_reading(storage.engine)
    return storage


def _lock_when_reading(engine: sqlalchemy.Engine) -> None:
    """Lets no other process write between what a transaction reads and what it makes of it; SQLite would."""

    @sqlalchemy.event.listens_for(engine, "connect")
    def leave_transactions_to_us(connection, _) -> None:
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()  # connections from before
