"""This process's own stdin and stdout, seen by whoever has started it: pipes, files, sockets and terminals.

Each test runs one program in a real process, whose descriptors it can put at stake.
"""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LOOPS = ["asyncio", "uvloop", "trio"]

# Echoes over stdio until its input ends, then says what it finds at its descriptors.
PROGRAM = """
import os, subprocess, sys
import anyio
from quiesce.wire import Peer
from quiesce.wire.transports.standard_streams import stdio

async def echo(params):
    return params

async def litter(params):
    print("a stray print")
    sys.stdout.flush()
    print("another one, never flushed")
    subprocess.run([sys.executable, "-I", "-S", "-c", "import sys; print('child got', repr(sys.stdin.read()))"], check=True)

async def blocking(params):
    return [os.get_blocking(fd) for fd in (0, 1, 2)]

async def second(params):
    await Peer.open(stdio())

async def main():
    protect = "bare" not in sys.argv
    handlers = {"echo": echo, "litter": litter, "blocking": blocking, "second": second}
    fds = set(os.listdir("/proc/self/fd"))
    async with Peer(stdio(protect=protect), handlers) as peer:
        await peer.wait_closed()
    assert set(os.listdir("/proc/self/fd")) == fds, (set(os.listdir("/proc/self/fd")), fds)
    print("back", [os.get_blocking(fd) for fd in (0, 1, 2)], repr(peer.error))

options = {"use_uvloop": True} if sys.argv[1] == "uvloop" else {}
anyio.run(main, backend="trio" if sys.argv[1] == "trio" else "asyncio", backend_options=options)
"""


def program(loop: str, *args: str) -> list[str]:
    return [sys.executable, "-W", "error", "-c", PROGRAM, loop, *args]


def asks(*methods: str) -> bytes:
    lines = [
        {"jsonrpc": "2.0", "id": number, "method": method, "params": [method]}
        for number, method in enumerate(methods, 1)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def answers_in(output: bytes) -> tuple[dict[int, Any], list[str]]:
    """By id what was answered, and every line that is no answer."""
    found: dict[int, Any] = {}
    others = []
    for line in output.decode().splitlines():
        if line.startswith("{"):
            message = json.loads(line)
            found[message["id"]] = message.get("result", message.get("error"))
        else:
            others.append(line)
    return found, others


@pytest.mark.parametrize("loop", LOOPS)
def test_stray_output_and_children_neither_spoil_nor_eat_anything_and_all_is_put_back(loop: str) -> None:
    with subprocess.Popen(
        program(loop), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(asks("echo", "litter", "blocking", "second", "echo"))
        process.stdin.flush()
        answers = b"".join(process.stdout.readline() for _ in range(5))
        rest, err = process.communicate(timeout=15)
    assert process.returncode == 0, err.decode()
    found, others = answers_in(answers + rest)
    assert found[1] == ["echo"]
    assert found[2] is None
    assert found[3] == [True, True, True]  # what others share with us blocks as before
    assert "in use by another stdio()" in found[4]["data"]["details"]
    assert found[5] == ["echo"]
    assert others == ["back [True, True, True] None"]
    heard = err.decode()
    assert "a stray print" in heard
    assert "another one, never flushed" in heard
    assert "child got ''" in heard


@pytest.mark.parametrize("loop", LOOPS)
def test_plain_files_do_as_well(loop: str, tmp_path: Path) -> None:
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_bytes(asks(*["echo"] * 3000))  # more than one read, and more than is taken on at once
    with asked.open("rb") as source, answered.open("wb") as sink:
        subprocess.run(program(loop), stdin=source, stdout=sink, timeout=15, check=True)
    found, others = answers_in(answered.read_bytes())
    assert sorted(found) == list(range(1, 3001))
    assert found[1] == ["echo"]
    assert others == ["back [True, True, True] None"]


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_to_read_and_nobody_to_write_to(loop: str) -> None:
    ended = subprocess.run(
        program(loop),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=15,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_socket_blocks_again_at_the_end(loop: str) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(15)
    with (
        ours,
        theirs,
        subprocess.Popen(program(loop), stdin=theirs.fileno(), stdout=theirs.fileno()) as process,
    ):
        ours.sendall(asks("echo"))
        ours.shutdown(socket.SHUT_WR)
        theirs.close()
        out = b""
        while data := ours.recv(65536):
            out += data
        assert process.wait(15) == 0
    found, others = answers_in(out)
    assert found[1] == ["echo"]
    assert others == ["back [True, True, True] None"]


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    yield ours, theirs
    for fd in (ours, theirs):
        os.close(fd)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_terminal_that_others_share_stays_as_it_was(loop: str, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    with subprocess.Popen(program(loop), stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.write(ours, asks("blocking"))
        out = b""
        while b"\n" not in out:
            out += os.read(ours, 65536)
        assert os.get_blocking(theirs)
        process.terminate()
    assert answers_in(out)[0] == {1: [True, True, True]}
    assert os.get_blocking(theirs)


@pytest.mark.parametrize("loop", ["asyncio"])
def test_unprotected_it_leaves_them_to_everybody(loop: str) -> None:
    ended = subprocess.run(
        program(loop, "bare"),
        input=asks("litter"),
        capture_output=True,
        timeout=15,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert b"a stray print" in ended.stdout


@pytest.mark.parametrize("loop", ["asyncio"])
def test_a_process_without_stdin_is_told_so(loop: str) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *program(loop)],
        capture_output=True,
        timeout=15,
        check=False,
    )
    assert ended.returncode == 1
    assert b"this process was started without stdin" in ended.stderr


# Closes its peer in one of several ways, when four requests have come: three are at work, and one waits for its turn.
CLOSES = """
import os, signal, sys
import anyio
import quiesce
from quiesce.wire import Limits, Peer, stdio

loop, way = sys.argv[1:]

async def work(params):
    await anyio.sleep_forever()

async def keep(params):
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        return "kept"

async def third(params):
    if way != "a handler":
        await anyio.sleep_forever()
    while not peer.statistics().requests_waiting:
        await anyio.sleep(0.001)
    await peer.close()
    return "bye"

async def main():
    global peer
    peer = Peer(stdio(), {"work": work, "keep": keep, "third": third}, limits=Limits(concurrent=3))
    if way == "the end of main":
        peer.start()
        await peer.wait_open()
    async with peer if way != "the end of main" else quiesce.Scope():
        if way in ("a handler", "the end of its input"):
            await peer.wait_closed()
            return
        while not peer.statistics().requests_waiting:
            await anyio.sleep(0.001)
        if way == "a signal":
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep_forever()

quiesce.run(main, uvloop=loop == "uvloop", backend="trio" if loop == "trio" else "asyncio")
"""
WAYS = ["a handler", "the end of the block", "the end of main", "the end of its input", "a signal"]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_closed_in_any_way_every_request_that_was_read_is_answered(loop: str, way: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CLOSES, loop, way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(asks("work", "keep", "third", "work"))
        process.stdin.flush()
        if way == "the end of its input":
            process.stdin.close()
        output = process.stdout.read()
        assert process.stderr is not None
        err = process.stderr.read().decode()
        process.stdin.close()
        process.wait(15)
    assert process.returncode == (143 if way == "a signal" else 0), err
    found, others = answers_in(output)
    cancelled = {"code": -32800, "message": "Request cancelled"}
    assert found == {1: cancelled, 2: "kept", 3: "bye" if way == "a handler" else cancelled, 4: cancelled}
    assert others == []
