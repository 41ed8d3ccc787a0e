"""The same resource, owned: one line changes, and it is entered and left by one task."""

from collections.abc import AsyncIterator

import pytest
from session import Session, connect

from quiesce.fixtures import owned_fixture

shared = owned_fixture(connect, scope="module")


@owned_fixture
async def session() -> AsyncIterator[Session]:
    async with connect() as session:
        yield session


@pytest.mark.asyncio
async def test_owned(session: Session) -> None:
    assert await session.call("ping") == "pong"


@pytest.mark.asyncio(loop_scope="module")
async def test_shared(shared: Session) -> None:
    assert await shared.call("ping") == "pong"
