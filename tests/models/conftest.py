"""One server for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.models.server import Server
from tests.models.wires import APIS, Api


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.stop()


@pytest.fixture
def server(_server: Server) -> Server:
    _server.reset()
    return _server


@pytest.fixture(params=APIS, ids=lambda api: api.name)
def api(request: pytest.FixtureRequest) -> Api:
    found: Api = request.param
    return found
