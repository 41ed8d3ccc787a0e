"""The process that serves an embedded model: started, asked whether it is busy, and ended.

A process of its own, and not this one, because in this one the promises could not be kept: loading holds the interpreter's lock, so that the
event loop stands still for the better part of a second; a thread of the native code stays for ever; and an answer that is given up
while its prompt is still being read is read to the end, which can take a minute. A process can be ended at any time.

Invariants
- It listens on loopback only, on a port that the system chose. Without the key, which was made for it, nobody gets an answer of the model, or
  learns anything but that a server is there (`/health`).
- Its output reaches nobody's screen; the end of it is in the error if it cannot start.
- It ends when our process does, however that ends.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio

from quiesce import Grace, PipeClosed, Process
from quiesce._extras import require
from quiesce.models.openai import OpenAIModel
from quiesce.models.words import ModelConnectionError

from . import server_main

if TYPE_CHECKING:
    from quiesce import Scope, StopReport

STARTED_WITHIN = 60.0  # seconds, from a slow disk
FREED_WITHIN = 0.4  # seconds for the server to notice that nobody wants its answer
LOOK_EVERY = 0.01
_GRACE = Grace(cancel=0.5, terminate=0.5, kill=1.0)  # it has nothing to lose


class EmbeddedServer:
    """A running server for some weights, with the model that speaks to it."""

    def __init__(self, process: Process, url: str, key: str, name: str) -> None:
        self._process = process
        self._port = int(url.rpartition(":")[2])
        self._key = key
        openai: Any = require("openai", "openai", "EmbeddedModel")
        library = openai.DefaultAsyncHttpxClient
        # Loopback is reached directly, whatever proxy the environment names; and nothing is kept open between answers.
        client = library(trust_env=False, verify=False, timeout=None, limits=_no_connections_kept(library))
        self.model = OpenAIModel(
            name, base_url=f"http://127.0.0.1:{self._port}/v1", api_key=key, http_client=client
        )

    @classmethod
    async def start(
        cls, weights: Path, *, name: str, context: int, threads: int, scope: Scope | None = None
    ) -> Self:
        """A server that is ready to answer, owned by `scope`, the current one unless given."""
        key = secrets.token_urlsafe(24)
        request = {
            "weights": str(weights),
            "context": context,
            "threads": threads,
            "key": key,
            "path": [os.getcwd() if entry == "" else entry for entry in sys.path],
        }
        process = await Process.open(
            _command(), stdin="pipe", stderr_limit=4096, name=f"server of {name}", grace=_GRACE, scope=scope
        )
        try:
            url = await _introduced(process, request, name)
        except BaseException:
            process.signal(signal.SIGKILL)  # while it loads, it hears nothing
            await process.close()
            raise
        return cls(process, url, key, name)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process.returncode is None

    @property
    def how_it_ended(self) -> str:
        """The end of a process that has ended, in words."""
        return _end_of(self._process)

    async def is_free(self) -> bool:
        """Whether it has noticed, within a moment, that nobody wants an answer any more."""
        with anyio.move_on_after(FREED_WITHIN):
            while self.is_alive:
                if not await self._is_busy():
                    return True
                await anyio.sleep(LOOK_EVERY)
        return False

    async def _is_busy(self) -> bool:
        ask = f"GET /slots HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._key}\r\n\r\n"
        try:
            async with await anyio.connect_tcp("127.0.0.1", self._port) as connection:
                await connection.send(ask.encode())
                answer = b""
                while True:
                    try:
                        answer += await connection.receive()
                    except anyio.EndOfStream:
                        break
            slots = json.loads(answer.partition(b"\r\n\r\n")[2])
            return any(slot["is_processing"] for slot in slots)
        except (OSError, anyio.BrokenResourceError, ValueError, LookupError, TypeError):
            return True  # whatever it does, it does not say that it is free

    async def has_ended(self) -> bool:
        """Whether its process has ended, or is about to: a connection breaks a moment before."""
        with anyio.move_on_after(FREED_WITHIN):
            await self._process.wait()
        return not self.is_alive

    def kill(self) -> None:
        """End it now; `close` waits for that."""
        self._process.signal(signal.SIGKILL)

    async def close(self) -> StopReport:
        """End it, and wait until it is gone."""
        return await self._process.close()


async def _introduced(process: Process, request: dict[str, Any], name: str) -> str:
    """Tell it what to serve, and hear where."""
    said: dict[str, Any] = {}
    with anyio.move_on_after(STARTED_WITHIN) as waited:
        try:
            await process.write(json.dumps(request).encode() + b"\n")
            async for line in process.lines():
                said = json.loads(line)
                break
        except (BrokenPipeError, PipeClosed):
            pass  # it has ended, and how is said below
        if not said:
            await process.wait()
    if "url" in said:
        return str(said["url"])
    if waited.cancelled_caught:
        why = f"it is not ready after {STARTED_WITHIN:g} s"
    elif "failed" in said:
        why = str(said["failed"])
    else:
        why = _end_of(process)
    raise ModelConnectionError(f"model {name!r}: its server cannot start: {why}", model=name)


def _command() -> list[str]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing
    return [sys.executable, *flags, "-P", server_main.__file__]


def _end_of(process: Process) -> str:
    status = process.returncode
    if status is not None and status < 0:
        how = f"its process was ended by signal {-status}"
    else:
        how = f"its process exited with status {status}"
    tail = process.stderr_tail.decode(errors="replace").strip()
    return how + (f"; the last it wrote:\n{tail}" if tail else "")


def _no_connections_kept(library: Any) -> Any:
    from importlib import import_module

    return import_module(library.__mro__[1].__module__.partition(".")[0]).Limits(max_keepalive_connections=0)
