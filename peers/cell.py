"""One cell, in a process of its own: `python -m peers.cell MODULE SCENARIO without|with|dropin STOP`.

It speaks to its judge by lines of JSON on the descriptor that PEERS_CONTROL names. A stop from outside comes
after it has said that it is ready; after a stop from inside it says what is left, and waits to be told that
the judge has looked too.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import sys
from typing import Any

from .left import Inside
from .stops import NotRun, Stop, perform
from .ways import Scenario, Way

PATIENCE = 1.0  # seconds after the stop for what is on its way out
LOOK = 0.05  # between one look for it and the next
CONTROL = int(os.environ.get("PEERS_CONTROL", "1"))


def main(module: str, name: str, side: str, how: str) -> None:
    logging.getLogger().addHandler(logging.NullHandler())  # what they log is not what is judged
    scenario: Scenario = getattr(importlib.import_module(f"peers.{module}"), name)()
    way = {"without": scenario.without, "with": scenario.with_quiesce, "dropin": scenario.dropin}[side]
    assert way is not None
    if how in ("ctrl-c-2", "killed"):
        way.run(lambda: _work(way))
    else:
        asyncio.run(_stop_and_look(way, how))


async def _work(way: Way) -> None:
    try:
        await way.use(lambda: say(at="ready"))
    finally:
        say(at="left")  # for the record: the work has ended, the program not yet


async def _stop_and_look(way: Way, how: str) -> None:
    inside = Inside(asyncio.get_running_loop())
    try:
        faults = await perform(way, how, stop := Stop())
    except NotRun as error:
        say(at="not run", why=str(error))
        os._exit(0)
    seconds = stop.seconds
    looks = round(PATIENCE / LOOK)  # not seconds: while the machine stands still, nothing can go
    while (left := inside.left()) and looks:
        looks -= 1
        await asyncio.sleep(LOOK)
    say(
        at="stopped",
        faults=faults,
        left=left,
        stray=inside.stray,
        named=inside.named + stop.named,
        seconds=seconds,
    )
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)


def say(**message: Any) -> None:
    os.write(CONTROL, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
