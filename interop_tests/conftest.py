"""Conversations between programs of ours and programs on other people's libraries. Run by `make test-interop`."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.inherited import put_in_order
from tests.time_limit import limit_each_test as pytest_runtest_call  # noqa: F401

from interop_tests.conversation import Conversation
from interop_tests.pairs import HERE, NODE_PACKAGES, Pair, pairs

put_in_order()
os.environ["QUIESCE_ACP_TOKEN"] = uuid.uuid4().hex  # of servers, and for their clients


def pytest_configure() -> None:
    """There is no way in which these skip: what is not here is said, and they fail."""
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
    for name, number in wanted.items():
        package = NODE_PACKAGES / "node_modules" / name / "package.json"
        if not package.is_file() or json.loads(package.read_text())["version"] != number:
            raise pytest.UsageError(f"{name} {number} is not in {NODE_PACKAGES}: run `make test-interop`")
    if shutil.which("node") is None:
        raise pytest.UsageError("there is no node here, and half of the programs need it")
    if (found := version("agent-client-protocol")) != "0.12.1":
        raise pytest.UsageError(f"agent-client-protocol is {found}: run `make test-interop`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pair" in metafunc.fixturenames:
        suits = getattr(metafunc.function, "suits", lambda _: True)
        marked = [
            pytest.param(pair, id=str(pair), marks=pytest.mark.xdist_group(str(pair)))
            for pair in pairs()
            if suits(pair)
        ]
        metafunc.parametrize("pair", marked, scope="session")


Converse = Callable[..., Conversation]


@pytest.fixture
def converse(pair: Pair, tmp_path: Path) -> Iterator[Converse]:
    """Starts a conversation of this test's own, which it may end in any way."""
    begun: list[Conversation] = []

    def begin(agent_command: list[str] | None = None) -> Conversation:
        begun.append(Conversation(pair, tmp_path, agent_command))
        return begun[-1]

    yield begin
    for one in begun:
        one.kill()


@pytest.fixture(scope="session")
def conversation(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    """One that all tests of a pair share, each in a session of its own: what one of them stops hurts no other."""
    shared = Conversation(pair, tmp_path_factory.mktemp("shared"))
    try:
        shared.open()
        yield shared
        shared.close()
        shared.nothing_is_left()
    finally:
        shared.kill()


@pytest.fixture
def session(conversation: Conversation) -> str:
    return conversation.new_session()
