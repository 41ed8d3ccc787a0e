"""One server for all tests of a process, and the official clients, imported.

They bring a hundred thousand objects. Those that are there before the first test are not looked at again after each.
"""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
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


# What they import only when it is first used.
openai.AsyncOpenAI(api_key="none", http_client=openai.DefaultAsyncHttpxClient(verify=False)).chat  # noqa: B018
anthropic.AsyncAnthropic(api_key="none", http_client=anthropic.DefaultAsyncHttpxClient(verify=False)).messages  # noqa: B018
