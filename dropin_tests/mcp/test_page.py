"""What docs/keep-your-sdk/mcp.md shows."""

from __future__ import annotations

import asyncio

import pytest
from tests.world import asyncio_only

# --8<-- [start:import]
from quiesce.dropin.mcp import ClientSession, StdioServerParameters, stdio_client

# --8<-- [end:import]
from .servers import over_stdio, processes

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]


# --8<-- [start:use]
async def call(server: StdioServerParameters, tool: str) -> None:
    async with asyncio.timeout(2):  # TimeoutError, when the server has ended
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            print(await session.call_tool(tool, {}))


# --8<-- [end:use]
# --8<-- [start:anywhere]
class Connection:
    """Opened by one request of a web server, used by others, and closed by any."""

    async def open(self, server: StdioServerParameters) -> None:
        self.transport = stdio_client(server)
        read, write = await self.transport.__aenter__()
        self.session = await ClientSession(read, write).__aenter__()
        await self.session.initialize()

    async def close(self) -> None:
        await self.session.close()  # calls that wait raise "Connection closed"
        report = await self.transport.close()  # the server has ended, with its whole tree
        assert report.clean, report


# --8<-- [end:anywhere]


async def test_the_pages_call_answers(capsys: pytest.CaptureFixture[str]) -> None:
    await call(over_stdio(), "echo")
    assert "content" in capsys.readouterr().out
    assert processes() == []


async def test_the_pages_call_times_out() -> None:
    with pytest.raises(TimeoutError):
        await call(over_stdio(), "work")
    assert processes() == []


async def test_the_pages_connection_is_opened_used_and_closed_by_three_tasks() -> None:
    connection = Connection()
    await asyncio.create_task(connection.open(over_stdio("deaf")))
    waiting = asyncio.create_task(connection.session.call_tool("work", {}))
    await asyncio.sleep(0.1)
    await asyncio.create_task(connection.close())
    with pytest.raises(Exception, match="Connection closed"):
        await waiting
    assert processes() == []
