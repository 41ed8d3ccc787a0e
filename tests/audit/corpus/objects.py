"""Objects and state that a stop leaves behind in the program."""

from __future__ import annotations

import os
from io import TextIOWrapper

import anyio

from .entry import TICK, Entry, Finds

# A coroutine is made early and awaited late, or never.


async def report() -> None:
    await anyio.sleep(0)


async def makes_its_report_early() -> None:
    reporting = report()  # leak: unawaited-report
    await anyio.sleep(TICK)  # stop: unawaited-report
    await reporting


async def makes_its_report_in_time() -> None:
    await anyio.sleep(TICK)
    await report()


# A file is closed at the end only.


def open_log() -> TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")


async def closes_its_log_at_the_end() -> None:
    log = open_log()
    await anyio.sleep(TICK)
    log.close()


async def closes_its_log() -> None:
    with open_log():
        await anyio.sleep(TICK)


# An object that is dropped unclosed complains where nobody can hear it.


class Client:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def __del__(self) -> None:
        if not self.is_closed:
            raise RuntimeError("the client was not closed")


async def drops_its_client() -> None:
    client = Client()
    await anyio.sleep(TICK)
    client.close()


async def closes_its_client() -> None:
    client = Client()
    try:
        await anyio.sleep(TICK)
    finally:
        client.close()


# A mark in the program says that somebody is at work, who no longer is.


class Worker:
    is_running = False

    @classmethod
    def begin(cls) -> None:
        was_running, cls.is_running = cls.is_running, False
        if was_running:
            raise RuntimeError("there is a worker already")
        cls.is_running = True

    @classmethod
    def end(cls) -> None:
        cls.is_running = False


async def says_it_ended_at_the_end() -> None:
    Worker.begin()
    await anyio.sleep(TICK)
    Worker.end()


async def says_that_it_ended() -> None:
    Worker.begin()
    try:
        await anyio.sleep(TICK)
    finally:
        Worker.end()


ENTRIES = [
    Entry(
        "unawaited-report",
        makes_its_report_early,
        makes_its_report_in_time,
        (
            Finds(
                "unawaited",
                "report",
                "cancel/early",
                on_trio="cancel/unstarted",
                leak="unawaited-report",
                stop="unawaited-report",
            ),
        ),
    ),
    Entry(
        "unclosed-log",
        closes_its_log_at_the_end,
        closes_its_log,
        (Finds("unclosed", "unclosed file <*/dev/null*>", "cancel/early", on_trio="cancel/unstarted"),),
        {"stops": "cancel"},
    ),
    Entry(
        "unraisable-client",
        drops_its_client,
        closes_its_client,
        (
            Finds(
                "unraisable",
                "Client.__del__: RuntimeError: the client was not closed",
                "cancel/early",
                on_trio="cancel/unstarted",
            ),
        ),
        {"stops": "cancel"},
    ),
    Entry(
        "worker-already",
        says_it_ended_at_the_end,
        says_that_it_ended,
        (
            Finds(
                "again",
                "says_it_ended_at_the_end",
                "cancel/early",
                on_trio="cancel/unstarted",
                says="there is a worker already",
            ),
        ),
        {"stops": "cancel", "again": True},
    ),
]
