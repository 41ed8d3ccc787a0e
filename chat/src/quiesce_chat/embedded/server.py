"""The process that serves an embedded model: starting it, asking whether it is idle, and stopping it.

The model runs in a process of its own because inside this one the promises could not be kept: loading it holds the
interpreter's lock, which blocks the event loop for the better part of a second; a thread of the native code never
ends; and a prompt is read to its end even if its answer is no longer wanted, which can take a minute. A process can
be killed at any time.

Invariants
- The server listens on loopback only, on a port that the system chose. It answers only with the key, which was
  generated for it; without the key a client learns nothing but that a server exists (`/health`).
- Its output is never shown to the user; if it cannot start, the end of its output is in the error.
- It ends when our process does, no matter how that ends.
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
from quiesce.inner import require
from quiesce.models import ModelConnectionError, OpenAIModel

from . import server_main

if TYPE_CHECKING:
    from quiesce import Scope, StopReport

# How many seconds loading may take; a disk can be slow.
STARTED_WITHIN = 60.0
# How many seconds the server has to notice that its answer is no longer wanted.
FREED_WITHIN = 0.4
LOOK_EVERY = 0.01
# A short grace: the server has nothing that it would have to save.
_GRACE = Grace(cancel=0.5, terminate=0.5, kill=1.0)


class EmbeddedServer:
    """A running server for some weights, with `model`, which is the client to it."""

    def __init__(self, process: Process, url: str, key: str, name: str) -> None:
        self._process = process
        self._port = int(url.rpartition(":")[2])
        self._key = key
        openai: Any = require("openai", "openai", "EmbeddedModel")
        library = openai.DefaultAsyncHttpxClient
        # `trust_env=False`: a proxy that the environment names must not be used for loopback. No connection is kept
        # open between answers, so that nothing has to be closed with the server.
        client = library(trust_env=False, verify=False, timeout=None, limits=_no_connections_kept(library))
        self.model = OpenAIModel(
            name, base_url=f"http://127.0.0.1:{self._port}/v1", api_key=key, http_client=client
        )

    @classmethod
    async def start(
        cls, weights: Path, *, name: str, context: int, threads: int, scope: Scope | None = None
    ) -> Self:
        """Start a server and wait until it is ready; `scope` owns it, by default the current scope."""
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
            url = await _hand_over(process, request, name)
        except BaseException:
            # While it loads, it does not respond to SIGTERM; so do not wait for that.
            process.signal(signal.SIGKILL)
            await process.close()
            raise
        return cls(process, url, key, name)

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the server's process is running."""
        return self._process.returncode is None

    @property
    def exit_description(self) -> str:
        """How the process exited, in words."""
        return _describe_exit(self._process)

    async def is_idle(self) -> bool:
        """Wait up to `FREED_WITHIN` seconds for the server to stop computing, and return whether it did."""
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
            # No valid reply: anything but a clear statement that it is idle counts as busy.
            return True

    async def has_exited(self) -> bool:
        """Return whether the process has exited; wait a moment, because its connections break just before that."""
        with anyio.move_on_after(FREED_WITHIN):
            await self._process.wait()
        return not self.is_alive

    def kill(self) -> None:
        """Kill the process without waiting for it; `close` does that."""
        self._process.signal(signal.SIGKILL)

    async def close(self) -> StopReport:
        """Stop the process, wait until it has exited, and return the report."""
        return await self._process.close()


async def _hand_over(process: Process, request: dict[str, Any], name: str) -> str:
    """Send the server its request, and return the URL that it listens on; raise if it cannot start."""
    reply: dict[str, Any] = {}
    with anyio.move_on_after(STARTED_WITHIN) as waited:
        try:
            await process.write(json.dumps(request).encode() + b"\n")
            async for line in process.lines():
                reply = json.loads(line)
                break
        except (BrokenPipeError, PipeClosed):
            # The process has exited; the error below says how.
            pass
        if not reply:
            await process.wait()
    if "url" in reply:
        return str(reply["url"])
    if waited.cancelled_caught:
        why = f"it is not ready after {STARTED_WITHIN:g} s"
    elif "failed" in reply:
        why = str(reply["failed"])
    else:
        why = _describe_exit(process)
    raise ModelConnectionError(f"model {name!r}: its server cannot start: {why}", model=name)


def _command() -> list[str]:
    # The flags of this interpreter, obtained as `multiprocessing` does it.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-P", server_main.__file__]


def _describe_exit(process: Process) -> str:
    status = process.returncode
    if status is not None and status < 0:
        how = f"its process was killed by signal {-status}"
    else:
        how = f"its process exited with status {status}"
    tail = process.stderr_tail.decode(errors="replace").strip()
    return how + (f"; its last output:\n{tail}" if tail else "")


def _no_connections_kept(library: Any) -> Any:
    from importlib import import_module

    return import_module(library.__mro__[1].__module__.partition(".")[0]).Limits(max_keepalive_connections=0)
