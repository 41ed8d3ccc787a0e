"""What a realtime session costs, and how a thousand of them close, beside openai-agents, in one process.

    make bench                                 # with the others
    python bench/realtime/run.py scripted      # some parts: scripted, socket, closing

It makes an environment of its own for the two (build/bench-realtime, the versions in versions.txt) and runs
itself there, on asyncio. CPU time of the program, best of interleaved rounds, without the garbage collector.
`scripted`: one model for both, in memory (libraries.py). `socket`: each library's own WebSocket model, with
the local server of quiesce.realtime.testing in another process. `closing`: a thousand sessions with work in
them, all closed at once, and what is left of them. docs/performance.md holds a result.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = ROOT / "build" / "bench-realtime"
IS_THERE = "QUIESCE_BENCH_REALTIME"
ROUNDS = 9
LIMIT = 60.0  # seconds for a round, until it counts as a hang

sys.path.insert(0, str(ROOT / "bench"))

Timed = Callable[[Any], Awaitable[float]]


def go_there() -> int:
    """Make the environment, and run this file in it."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from throwaway import NotInstalled, build_wheel, make_environment

    try:
        wheel = build_wheel(ROOT / "build" / "bench-wheel")
        make_environment(ENVIRONMENT, Path(__file__).with_name("versions.txt"), wheel)
    except NotInstalled as error:
        print(f"the peer cannot be had here, so nothing is compared: {error}", file=sys.stderr)
        return 1
    python = str(ENVIRONMENT / "bin" / "python")
    return os.spawnve(os.P_WAIT, python, [python, *sys.argv], {**os.environ, IS_THERE: "1"})


# In memory, with the same model


@contextlib.asynccontextmanager
async def scripted(library: Any, **agent: Any) -> AsyncIterator[tuple[Any, Any]]:
    model = library.model_type()
    async with await library.session(model, library.agent(**agent)) as session:
        yield session, model


async def said(library: Any, event: Any, kind: str, in_a_turn: int, count: int = 2000, **agent: Any) -> float:
    """CPU seconds of each event that the model says and somebody reads."""
    from realtime.libraries import read, read_raw

    async with scripted(library, **agent) as (session, model):
        reader = read if kind == "audio" else read_raw
        took = 0.0
        for number in (50, count):  # the first ones for lazy imports and caches
            start = time.process_time()
            reading = asyncio.create_task(reader(session, kind, number))
            await model.say(event, number, in_a_turn)
            await reading
            took = time.process_time() - start
        return took / count


async def audio_as_it_comes(library: Any) -> float:
    return await said(library, library.audio(), "audio", 100)


async def audio_one_a_turn(library: Any) -> float:
    return await said(library, library.audio(), "audio", 1)


async def transcript(library: Any) -> float:
    return await said(library, library.delta(), "transcript_delta", 100)


async def guarded_transcript(library: Any) -> float:
    return await said(
        library, library.delta(), "transcript_delta", 1, output_guardrails=[library.guardrail()]
    )


async def tool_call(library: Any, count: int = 200) -> float:
    from realtime.libraries import read

    async def add() -> str:
        """Add nothing."""
        return "3"

    async with scripted(library, tools=[library.tool(add)]) as (session, model):
        start = 0.0
        for number in range(count + 1):
            if number == 1:  # the first one was for lazy imports and caches
                start = time.process_time()
            reading = asyncio.create_task(read(session, "tool_end", 1))
            await model.say(library.call("add", number), 1, 1)
            await reading
        assert model.outputs == count + 1
        return (time.process_time() - start) / count


async def audio_sent(library: Any, count: int = 2000) -> float:
    from realtime.libraries import FRAME_OUT

    async with scripted(library) as (session, _):
        await session.send_audio(FRAME_OUT)
        start = time.process_time()
        for _ in range(count):
            await session.send_audio(FRAME_OUT)
        return (time.process_time() - start) / count


async def opened_and_closed(library: Any, count: int = 50) -> float:
    async with scripted(library):
        pass
    start = time.process_time()
    for _ in range(count):
        async with scripted(library):
            pass
    return (time.process_time() - start) / count


SCRIPTED: dict[str, Timed] = {
    "an audio frame, as fast as they come": audio_as_it_comes,
    "an audio frame, one a turn of the loop": audio_one_a_turn,
    "a piece of transcript, as fast as they come": transcript,
    "a piece of transcript, with a guardrail, one a turn of the loop": guarded_transcript,
    "a tool call, from the call to its output": tool_call,
    "an audio frame sent": audio_sent,
    "a session, opened and closed": opened_and_closed,
}


# Over a WebSocket


@contextlib.contextmanager
def server(kind: str, count: int, pace: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    """The local server, in a process of its own; `url_of` tells where."""
    command = [sys.executable, str(Path(__file__).with_name("server.py")), kind, str(count), str(pace)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(20)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def received(library: Any, url: str, kind: str, count: int) -> float:
    """CPU seconds of each of so many pieces that the server says."""
    from realtime.libraries import read_raw

    async with await library.session(None, url=url) as session:
        await read_raw(session, "raw_server_event", 2)  # session.created, session.updated
        start = time.process_time()
        await session.send_message("Go.")
        await read_raw(session, kind, count)
        return (time.process_time() - start) / count


async def sent_over_a_socket(library: Any, url: str, count: int) -> float:
    """CPU seconds of each frame of audio, and the server has all of them."""
    from realtime.libraries import FRAME_OUT

    async with await library.session(None, url=url) as session:
        start = time.process_time()
        for number in range(count):
            await session.send_audio(FRAME_OUT)
            if number % 20 == 19:
                await asyncio.sleep(0)
        await session.send_audio(FRAME_OUT, commit=True)
        async for event in session:
            if (
                event.type == "raw_model_event"
                and event.data.type == "raw_server_event"
                and event.data.data.get("type") == "input_audio_buffer.committed"
            ):
                break
        return (time.process_time() - start) / count


async def connected_and_closed(library: Any, url: str, count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        async with await library.session(None, url=url):
            pass
    return (time.process_time() - start) / count


def socket_rows(libraries: list[Any]) -> None:
    heading("Over a WebSocket", libraries)
    rows: list[tuple[str, tuple[str, int, float], Callable[[Any, str], Awaitable[float]]]] = [
        (
            "an audio frame of 4,800 bytes, as fast as they come",
            ("audio", 1000, 0.0),
            lambda library, url: received(library, url, "audio", 1000),
        ),
        (
            "an audio frame of 4,800 bytes, one every 2 ms",
            ("audio", 200, 0.002),
            lambda library, url: received(library, url, "audio", 200),
        ),
        (
            "a piece of text, as fast as they come",
            ("text", 1000, 0.0),
            lambda library, url: received(library, url, "output_text_delta", 1000),
        ),
        (
            "an audio frame of 960 bytes sent",
            ("text", 1, 0.0),
            lambda library, url: sent_over_a_socket(library, url, 1000),
        ),
        (
            "a session, connected and closed",
            ("text", 1, 0.0),
            lambda library, url: connected_and_closed(library, url, 20),
        ),
    ]
    for title, says, timed in rows:
        with server(*says) as process:
            url = line_of(process)
            row(title, libraries, lambda library, timed=timed, url=url: timed(library, url))  # type: ignore[misc]


# Measuring


def best_of(libraries: list[Any], timed: Timed) -> dict[str, float]:
    async def bounded(library: Any) -> float:
        async with asyncio.timeout(LIMIT):
            return await timed(library)

    best = {library.name: float("inf") for library in libraries}
    for _ in range(ROUNDS):
        for library in libraries:
            gc.collect()
            gc.disable()
            try:
                best[library.name] = min(best[library.name], asyncio.run(bounded(library)))
            finally:
                gc.enable()
    return best


def heading(title: str, libraries: list[Any]) -> None:
    print(
        f"\n### {title}\n\n| | " + " | ".join(f"{library.name} (µs)" for library in libraries) + " | ratio |"
    )
    print("|---|---|---|---|", flush=True)


def row(title: str, libraries: list[Any], timed: Timed) -> None:
    ours, theirs = best_of(libraries, timed).values()
    print(f"| {title} | {ours * 1e6:.1f} | {theirs * 1e6:.1f} | {theirs / ours:.1f}× |", flush=True)


def main() -> int:
    parts = sys.argv[1:] or ["scripted", "socket", "closing"]
    if unknown := set(parts) - {"scripted", "socket", "closing"}:
        print(f"no such part: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if IS_THERE not in os.environ:
        return go_there()
    from realtime.libraries import libraries

    both = libraries()
    print(
        f"CPython {platform.python_version()}, {', '.join(map(str, both))}, websockets {version('websockets')}"
    )
    if "scripted" in parts:
        heading("In memory, with the same scripted model", both)
        for title, timed in SCRIPTED.items():
            row(title, both, timed)
    if "socket" in parts:
        socket_rows(both)
    if "closing" in parts:
        from realtime.closing import closing

        closing(both, server, line_of)
    return 0


if __name__ == "__main__":
    sys.exit(main())
