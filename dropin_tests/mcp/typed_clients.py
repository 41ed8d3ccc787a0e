"""As `typed.py`, for what only mcp 2.x has."""

from __future__ import annotations

from typing import assert_type

import mcp

from quiesce import StopReport
from quiesce.dropin.mcp import Client
from quiesce.dropin.mcp.client import advertise


async def use_a_client() -> None:
    async with Client("http://127.0.0.1/mcp", extensions=[advertise("com.example/a", {})]) as client:
        assert_type(client, Client)
        as_theirs: mcp.Client = client
        assert_type(await as_theirs.list_tools(), mcp.ListToolsResult)
    assert_type(await client.close(), StopReport)
