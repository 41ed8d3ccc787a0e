"""Breaking out of a stream cancels an innocent task and leaves a process.

As in claude-agent-sdk 0.1.50: `query()` starts the CLI and a task group that reads from it, and exits the group
when the generator is closed. After a `break`, asyncio closes the generator in a task of its own. The group's cancel
scope belongs to the task that had read the stream: that task is cancelled, exiting the group fails, and the CLI is
never stopped.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator
from subprocess import DEVNULL
from typing import Any

import anyio
from anyio.streams.text import TextReceiveStream

from quiesce import claude
from quiesce.cli.tour.stage import Stage

from . import stand_in_cli

READS, WATCHED_FOR, STEP = 5, 1.0, 0.08  # messages; seconds; seconds


class Cli:
    """The stand-in for the CLI: how to start it, and how many steps its agent has taken."""

    def __init__(self, stage: Stage) -> None:
        folder = stage.folder()
        self.path = folder / "claude"
        self._steps = folder / "steps"
        python, program = shlex.quote(sys.executable), shlex.quote(stand_in_cli.__file__)
        self.path.write_text(f'#!/bin/sh\nexec {python} -I -S {program} "$@"\n')
        self.path.chmod(0o755)
        self._steps.touch()
        self.environment = {
            "QUIESCE_TOUR_STEPS": str(self._steps),
            "QUIESCE_TOUR_PAUSE": str(stage.seconds(STEP)),
        }

    @property
    def steps(self) -> int:
        return self._steps.stat().st_size


async def query(stage: Stage, cli: Cli) -> AsyncIterator[dict[str, Any]]:
    process = await anyio.open_process([str(cli.path)], env=os.environ | cli.environment, stderr=DEVNULL)
    stage.process("claude", process.pid)
    stage.afterwards.push_async_callback(process.aclose)
    send, receive = anyio.create_memory_object_stream[dict[str, Any]](100)

    async def read() -> None:
        assert process.stdout is not None
        with stage.lane("reader"):
            rest = ""
            async for text in TextReceiveStream(process.stdout):
                *lines, rest = (rest + text).split("\n")
                for line in lines:
                    await send.send(json.loads(line))

    # Entered by hand, as in the SDK, so that the group stays open between the messages.
    tasks = anyio.create_task_group()
    await tasks.__aenter__()
    tasks.start_soon(read, name="reader")
    assert process.stdin is not None
    await process.stdin.send(b'{"type": "user", "message": {"role": "user", "content": "Tidy up."}}\n')
    try:
        async for message in receive:
            yield message
    finally:
        send.close()
        receive.close()
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)
        process.terminate()
        await process.wait()


async def ordinary(stage: Stage) -> None:
    cli = Cli(stage)

    async def your_task() -> None:
        with stage.lane("your task", innocent=True):
            count = 0
            async for _ in query(stage, cli):
                count += 1
                if count == READS:
                    break
            stage.control_is_back(look=False)
            # Its own work, which has nothing to do with the stream.
            await stage.rest(WATCHED_FOR / 2)

    yours = asyncio.create_task(your_task(), name="your task")
    await asyncio.wait([yours])
    await count_what_follows(stage, cli)


async def with_quiesce(stage: Stage) -> None:
    cli = Cli(stage)
    options = claude.ClaudeAgentOptions(cli_path=str(cli.path), env=cli.environment)

    async def your_task() -> None:
        with stage.lane("your task", innocent=True):
            count = 0
            messages = claude.query(prompt="Tidy up.", options=options)
            async for _ in messages:
                if count == 0:
                    stage.process("claude", messages.process.pid)
                count += 1
                if count == READS:
                    break
            stage.record_report(await messages.close())
            stage.control_is_back(look=False)
            await stage.rest(WATCHED_FOR / 2)

    yours = asyncio.create_task(your_task(), name="your task")
    await asyncio.wait([yours])
    await count_what_follows(stage, cli)


async def count_what_follows(stage: Stage, cli: Cli) -> None:
    gc.collect()
    so_far = cli.steps
    await stage.rest(WATCHED_FOR / 2)
    stage.look()
    stage.say(f"the agent in the process took {cli.steps - so_far} more steps")
