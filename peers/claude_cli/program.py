"""The program of one case: `python -m peers.claude_cli.program BACKEND CASE FOLDER CLI CONTROL PID...`.

It says to its judge, on the descriptor CONTROL, how it went. The PIDs are processes that it has not started.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import trio

from .stage import Stage
from .stops import STOPS
from .uses import USES


def main(backend: str, case: str, folder: str, cli: str, control: str, *strangers: str) -> None:
    def say(message: dict[str, Any]) -> None:
        os.write(int(control), json.dumps(message).encode() + b"\n")

    stage = Stage(Path(folder), cli, {int(pid) for pid in strangers}, say)
    program = {**STOPS, **USES}[case]

    async def run() -> None:
        await program(stage)

    try:
        if backend == "trio":
            trio.run(run)
        else:
            asyncio.run(run())
    except BaseException as error:
        traceback.print_exc()
        say({"at": "failed", "why": f"{type(error).__name__}: {error}"[:2000]})
        return
    if not stage.seen:  # it was left to the end of the event loop, which is now
        stage.look()
    say({"at": "stopped", **stage.seen})
    sys.stdin.read()  # until the judge has looked too


if __name__ == "__main__":
    main(*sys.argv[1:])
