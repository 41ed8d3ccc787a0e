"""The tests run in the worlds of `tests/conftest.py`, next to one PostgreSQL server per process. See CONTRIBUTING.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import *  # noqa: F403

from database_tests.server import PostgresServer, binaries
from quiesce.agents import PostgresStore


def pytest_sessionstart() -> None:
    """There is no way in which these skip: without a server they fail, and say so once."""
    try:
        binaries()
    except RuntimeError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    yield made
    made.close()


@pytest.fixture
def schema(server: PostgresServer) -> str:
    return server.new_schema()


@pytest.fixture
def store(server: PostgresServer, schema: str) -> Iterator[PostgresStore]:
    made = PostgresStore(server.url, schema=schema)
    # Its sessions are opened here and closed here: what the test itself opens is its own to close.
    made.lease_sync("nobody's").release_sync()
    yield made
    made.close_sync()
