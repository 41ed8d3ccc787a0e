"""A resource with a task group inside, in an ordinary yield fixture: the test passes, and its teardown fails.

    pytest examples/pytest_fixture

pytest-asyncio runs what comes before the `yield` in one task and what comes after it in another, and a task group
must be left by the task that entered it: "Attempted to exit cancel scope in a different task".
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from session import Session, connect


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    async with connect() as session:
        yield session


@pytest.mark.asyncio
async def test_by_hand(session: Session) -> None:
    assert await session.call("ping") == "pong"
