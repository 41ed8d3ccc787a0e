"""A child process tree that is gone when its owner is.

Three things that are easily confused are kept apart: the exit of the leader (a pidfd, whoever holds the pipes),
the pipes (which a grandchild may hold open for ever), and the tree (which may outlive the leader).

The tree is a child of the process's own scope, and its ladder is: close stdin, SIGTERM, SIGKILL, each to the
whole tree. A step that cannot help is skipped: no stdin, or a leader that has already left, and SIGTERM
comes at once. The leader stays a zombie until the rest of its tree is gone, so that its number, which is also
the group's, cannot be given to somebody else in between.

A watcher task waits for the exit and then for the tree. It is plumbing: a stop does not cancel it, it ends
with the tree. Only the end of the whole loop cancels it, and then it stops the tree first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ._backend import Backend, Waiter, current_backend
from ._child import FINISHED, RUNNING, Child
from ._core import ScopeCore
from ._grace import DEFAULT_GRACE, Grace, Rung
from ._pipe import Pipe
from ._reason import Reason, as_reason
from ._scope import Scope, current_core
from ._site import Site, describe, site_of
from ._tree import Tree

if TYPE_CHECKING:
    from ._report import StopReport

Stream: TypeAlias = Literal["pipe", "null", "inherit"]
Errors: TypeAlias = Literal["tail", "stdout", "null", "inherit"]

_POPEN = {"pipe": subprocess.PIPE, "null": subprocess.DEVNULL, "inherit": None}
_LOOK_EVERY = 0.01  # seconds between two looks at a tree that is being stopped
_CHUNK = 65536


class _TreeChild(Child):
    """The tree, as a child of the process's scope."""

    __slots__ = ("process",)

    kind = "process"

    def __init__(self, process: Process, core: ScopeCore, site: Site) -> None:
        super().__init__(core, process.name, site)
        self.process = process
        self.state = RUNNING

    def climb(self, rung: Rung) -> None:
        """EOF, TERM, KILL."""
        self.process._climb(rung)

    def abandon(self) -> None:
        """Nobody waits for the ladder: signal at once."""
        self.process._signal(signal.SIGTERM)

    def stuck_at(self) -> str:
        """Who is still there."""
        alive = self.process._tree.members()
        return ", ".join(f"pid {proc.pid} ({proc.name}, state {proc.state})" for proc in alive) or "exiting"


class Process:
    """A child process with all its descendants.

    ```python
    async with Process(["my-server", "--stdio"], stdin="pipe") as server:
        await server.write(b"hello\\n")
        async for line in server.lines():
            ...
    # here the server and everything it started are gone
    ```

    Or `server = await Process.open([...])` … `report = await server.close()`, from any task. Stopping closes
    stdin, then sends SIGTERM, then SIGKILL, each to the whole tree, as `Grace` says. stderr is always
    read; its last part is in `stderr_tail`, and `on_stderr` gets every chunk.

    If our own process dies, in whichever way, a guard process kills the tree. A descendant that made a session
    of its own is found by an environment variable; one that also cleared its environment is not.
    """

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stream = "null",
        stdout: Stream = "pipe",
        stderr: Errors = "tail",
        on_stderr: Callable[[bytes], object] | None = None,
        stderr_limit: int = 65536,
        name: str | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> None:
        for which, given, allowed in (
            ("stdin", stdin, ("pipe", "null", "inherit")),
            ("stdout", stdout, ("pipe", "null", "inherit")),
            ("stderr", stderr, ("tail", "stdout", "null", "inherit")),
        ):
            if given not in allowed:
                raise ValueError(f"{which} must be one of {', '.join(allowed)}, not {given!r}")
        self._start_with = (argv, cwd, env, stdin, stdout, stderr)
        self._on_stderr = on_stderr
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._tail_limit = stderr_limit
        self._grace = grace
        self._owner = scope
        self.name = name or _name_of(argv)
        self.returncode: int | None = None
        self._exit_waiters: list[Waiter] = []
        self._looks: list[Waiter] = []
        self._core: ScopeCore | None = None
        self._stdin: Pipe | None = None
        self._stdout: Pipe | None = None
        self._stderr: Pipe | None = None
        self._buffer = bytearray()

    _tree: Tree

    # Starting

    @classmethod
    async def open(cls, argv: Sequence[str | os.PathLike[str]], **options: Any) -> Process:
        """Start it; whoever holds it closes it, from any task. Options as for `Process`."""
        process = cls(argv, **options)
        process._start(site_of(sys._getframe(1)))
        return process

    def _start(self, site: Site) -> None:
        if self._core is not None:
            raise RuntimeError(f"process {self.name!r} was started before; make a new Process")
        argv, cwd, env, stdin, stdout, stderr = self._start_with
        backend = current_backend()
        parent = self._owner._opened() if self._owner is not None else current_core(backend)
        grace = self._grace or parent.grace
        core = backend.make_core(name=self.name, site=site, on_error="report", grace=grace, parent=parent)
        try:
            errors = {"tail": subprocess.PIPE, "stdout": subprocess.STDOUT}.get(stderr, _POPEN.get(stderr))
            self._tree = tree = Tree(
                argv, cwd=cwd, env=env, stdin=_POPEN[stdin], stdout=_POPEN[stdout], stderr=errors
            )
        except BaseException:
            core.settle()
            raise
        self._core = core
        core.on_settled = self._let_go
        child = _TreeChild(self, core, site)
        core.children[child] = None
        if tree.stdin is not None:
            self._stdin = Pipe(backend, tree.stdin, f"stdin of {self.name!r}")
        if tree.stdout is not None:
            self._stdout = Pipe(backend, tree.stdout, f"stdout of {self.name!r}")
        if tree.stderr is not None:
            self._stderr = Pipe(backend, tree.stderr, f"stderr of {self.name!r}")
            self._plumb(self._drain_stderr, self._stderr)
        self._plumb(self._watch, child)

    def _plumb(self, fn: Callable[..., Any], *args: Any) -> None:
        core = self._running()
        handle = core.backend.make_handle(core, None, core.site)
        handle.on_stop = lambda rung: True
        core.children[handle] = None
        core.start(handle, fn, args)

    def _running(self) -> ScopeCore:
        if self._core is None:
            raise RuntimeError(
                f"process {self.name!r} is not started: use `async with Process(...)` or `await Process.open(...)`"
            )
        return self._core

    async def __aenter__(self) -> Process:
        self._start(site_of(sys._getframe(1)))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        why = Reason("parent", "the block ended") if error is None else Reason("error", repr(error), error)
        await self._running().close(why, None)

    # Watching

    async def _watch(self, child: _TreeChild) -> None:
        import anyio

        core = self._running()
        cancelled = anyio.get_cancelled_exc_class()
        shield = False
        while child.state == RUNNING:
            try:
                with anyio.CancelScope(shield=shield):
                    await self._look(core, child)
            except cancelled:  # the loop is ending: the tree goes first
                shield = True
                core.stop(Reason("shutdown", "the event loop is ending"))

    async def _look(self, core: ScopeCore, child: _TreeChild) -> None:
        """Wait for whatever is next: the leader's exit, then the end of its tree."""
        tree, backend = self._tree, core.backend
        if self.returncode is None:
            status = tree.exit_status()
            if status is None:
                exit_fd = tree.exit_fd()
                if exit_fd is not None:
                    await backend.wait_readable(exit_fd)
                else:
                    await self._wait(core, _LOOK_EVERY)
                return
            self._exited(status)
        if not tree.members():
            self._gone(child, backend)
        elif not core.closed:
            await self._wait(core, None)
        else:
            if core.rung >= Rung.KILL:
                tree.signal(signal.SIGKILL)  # whoever was forked since the last one
            elif core.rung is Rung.CANCEL:
                self._next_rung(core)
            await self._wait(core, _LOOK_EVERY)

    async def _wait(self, core: ScopeCore, seconds: float | None) -> None:
        """Until the stop begins or climbs, or for some seconds."""
        waiter = core.backend.make_waiter()
        self._looks.append(waiter)
        timer = None
        if seconds is not None:
            timer = core.backend.call_at(core.backend.now() + seconds, waiter.wake)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._looks:
                self._looks.remove(waiter)

    def _exited(self, status: int) -> None:
        self.returncode = status
        for waiter in self._exit_waiters:
            waiter.wake()
        self._exit_waiters.clear()

    def _gone(self, child: _TreeChild, backend: Backend) -> None:
        """Nobody of the tree is left: let go of the number, end the pipes that only we hold."""
        exit_fd = self._tree.exit_fd()
        if exit_fd is not None:
            backend.stop_waiting_for(exit_fd)
        self._tree.reap()
        if self._stdin is not None:
            self._stdin.close()
        if self._stderr is not None:
            while data := self._stderr.read_nowait(_CHUNK):
                self._keep(data)
            self._stderr.close()
        child.state = FINISHED
        child.value = self.returncode
        child.ended()

    def _let_go(self) -> None:
        for pipe in (self._stdin, self._stdout, self._stderr):
            if pipe is not None:
                pipe.close()

    # Stopping

    def _climb(self, rung: Rung) -> None:
        core = self._running()
        if rung is Rung.CANCEL:
            if self._stdin is None or self._stdin.closed or self.returncode is not None:
                self._next_rung(core)
            else:
                self._stdin.close()
        elif rung is Rung.TERMINATE:
            self._signal(signal.SIGTERM)
        elif rung is Rung.KILL:
            self._signal(signal.SIGKILL)
        for waiter in self._looks:
            waiter.wake()

    def _next_rung(self, core: ScopeCore) -> None:
        """This rung has nothing to offer."""
        grace = core.grace
        backend = core.backend
        backend.call_at(
            backend.now(),
            lambda: core.stop(_HURRY, Grace(0.0, 0.0, grace.terminate, grace.kill)),
        )

    def _signal(self, number: int) -> None:
        if self._running().state != "settled":
            self._tree.signal(number)

    def signal(self, number: int) -> None:
        """Send a signal to the whole tree."""
        self._running()
        self._signal(number)

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Stop the tree, wait until it is gone, and report; from any task, as `Scope.close`."""
        core = self._running()
        if deadline is not None:
            grace = (grace or core.grace).within(deadline)
        return await core.close(as_reason(reason, Reason("user", "closed")), grace)

    # Using

    @property
    def pid(self) -> int:
        """The leader's process id, which is also the id of its session and group."""
        self._running()
        return self._tree.pid

    async def wait(self) -> int:
        """Wait for the leader's exit, whoever holds its pipes; its status, negative for a signal."""
        core = self._running()
        while self.returncode is None:
            waiter = core.backend.make_waiter()
            self._exit_waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._exit_waiters:
                    self._exit_waiters.remove(waiter)
        return self.returncode

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` to its stdin."""
        pipe = _piped(self._stdin, "stdin", self.name)
        try:
            await pipe.write(data)
        except BrokenPipeError:
            raise BrokenPipeError(f"{self.name!r} does not read its stdin any more{self._how()}") from None

    async def close_stdin(self) -> None:
        """Tell it that no more input comes."""
        _piped(self._stdin, "stdin", self.name).close()

    async def read(self, most: int = _CHUNK) -> bytes:
        """What it wrote to stdout, at most `most` bytes; `b""` at the end."""
        if self._buffer:
            data = bytes(self._buffer[:most])
            del self._buffer[:most]
            return data
        pipe = _piped(self._stdout, "stdout", self.name)
        return b"" if pipe.closed and self.returncode is not None else await pipe.read(most)

    def lines(self, *, limit: int = 1 << 25) -> AsyncIterator[bytes]:
        """Its stdout, line by line without the line ends; a line over `limit` bytes is a ValueError."""
        return _Lines(self, limit)

    async def _read_line(self, limit: int) -> bytes | None:
        buffer, scanned = self._buffer, 0
        while (cut := buffer.find(b"\n", scanned)) < 0:
            scanned = len(buffer)
            if scanned > limit:
                raise ValueError(f"{self.name!r} wrote a line of over {limit} bytes")
            pipe = _piped(self._stdout, "stdout", self.name)
            data = b"" if pipe.closed else await pipe.read(_CHUNK)
            if not data:
                line = bytes(buffer)
                buffer.clear()
                return line or None
            buffer += data
        line = bytes(buffer[:cut])
        del buffer[: cut + 1]
        return line.removesuffix(b"\r")

    # stderr

    @property
    def stderr_tail(self) -> bytes:
        """The last part of what it wrote to stderr."""
        return b"".join(self._tail)[-self._tail_limit :]

    async def _drain_stderr(self, pipe: Pipe) -> None:
        while not pipe.closed:
            data = await pipe.read(_CHUNK)
            if not data:
                break
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._tail_limit:
            self._tail_size -= len(self._tail.popleft())
        if self._on_stderr is not None:
            self._on_stderr(data)

    def _how(self) -> str:
        return "" if self.returncode is None else f" (it exited with {self.returncode})"

    def __del__(self) -> None:
        core = self._core
        if core is None or core.closed or not core.children:
            return
        core.backend.run_from_anywhere(lambda: core.abandon(Reason("parent", "dropped without close()")))
        warnings.warn(
            f"process {self.name!r} (pid {self._tree.pid}), started at {describe(core.site)}, was dropped "
            "without close(): its tree is being stopped",
            ResourceWarning,
            source=self,
            stacklevel=1,
        )

    def __repr__(self) -> str:
        if self._core is None:
            return f"<Process {self.name!r} not started>"
        return f"<Process {self.name!r} pid {self._tree.pid}{self._how()}>"


class _Lines:
    """An iterator, not a generator: breaking out of it leaves nothing to be finalised."""

    def __init__(self, process: Process, limit: int) -> None:
        self._process = process
        self._limit = limit

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> bytes:
        line = await self._process._read_line(self._limit)
        if line is None:
            raise StopAsyncIteration
        return line


_HURRY = Reason("parent")


def _name_of(argv: object) -> str:
    if isinstance(argv, Sequence) and not isinstance(argv, (str, bytes)) and argv:
        return os.path.basename(os.fspath(argv[0])) or "process"
    return "process"


def _piped(pipe: Pipe | None, which: str, name: str) -> Pipe:
    if pipe is None:
        raise RuntimeError(f'{name!r} has no pipe at its {which}: start it with {which}="pipe"')
    return pipe
