"""A program that uses one MCP server with mcp's own client, and does nothing about how it is stopped.

    python client.py ENDING PLAN

PLAN is JSON: `server`, as in an `mcp.json`; `opening`, calls that are made first; `running`, a call that runs while
the program is stopped, or null. It says when it is ready, and waits for the end of its input. Then it ends as ENDING
says.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp import ClientSession, StdioServerParameters, stdio_client


async def call(session: ClientSession, tool: str, arguments: dict[str, Any]) -> None:
    result = await session.call_tool(tool, arguments)
    if getattr(result, "is_error", None) or getattr(result, "isError", None):  # mcp 2, mcp 1
        sys.exit(f"the call of {tool} failed: {result.content}")


async def run_until_stopped(session: ClientSession, plan: dict[str, Any], ending: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        running: asyncio.Task[None] | None = None
        if plan["running"] is not None:
            running = tasks.create_task(call(session, *plan["running"]))
            running.add_done_callback(fail_if_it_ended)
        print("\nthe client is ready", flush=True)
        await end_of_input()
        if ending == "raise":
            raise RuntimeError("an exception in the session")
        main = asyncio.current_task()
        assert main is not None
        if ending == "cancel":
            main.cancel()
            await asyncio.sleep(0)
        if running is not None:
            running.remove_done_callback(fail_if_it_ended)
            running.cancel()


def fail_if_it_ended(running: asyncio.Task[None]) -> None:
    """A call that has ended by itself is not one that runs while the program is stopped."""
    if not running.cancelled() and running.exception() is None:
        print("the call has ended by itself", flush=True)
        os._exit(3)


async def end_of_input() -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def read() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            ended.set()

    loop.add_reader(0, read)
    await ended.wait()


async def main(ending: str, plan: dict[str, Any]) -> None:
    server = StdioServerParameters(**plan["server"])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        for tool, arguments in plan["opening"]:
            await call(session, tool, arguments)
        await run_until_stopped(session, plan, ending)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
