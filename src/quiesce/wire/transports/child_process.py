"""A child process as the other side, by its stdin and stdout.

Invariants
- The process, with everything it has started, is a `Process` in the connection's scope: when the peer is
  closed, the whole tree has exited. The first thing the process notices is the end of its input, after the
  last answer.
- Its exit is watched separately from its stdout, which a grandchild may keep open for ever: when it has
  exited, what it had written is read, and then the connection ends.
- No matter what is noticed first (the exit, the end of its stdout, a write that fails), the connection learns
  how the process ended: its status, and the last of what it wrote to stderr.
- The link has descriptors of its own, because the stop of the process may close the process's own ones at any
  moment.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from quiesce import Process, Reason, Scope
from quiesce.kernel.inner import AsyncioBackend, current_backend, duplicate_pipes, read_last_output
from quiesce.wire.base import ConnectionEnded, Framing, Lines
from quiesce.wire.links import (
    ChannelLink,
    DescriptorChannel,
    Link,
    Receiver,
    SelectorLink,
    Transport,
)

if TYPE_CHECKING:
    from quiesce import Grace
    from quiesce.wire.base import Limits

_SHOWN: Final = 2000  # bytes of stderr that an error quotes
_EXIT_FOLLOWS: Final = 0.5  # seconds to wait, at the end of its stdout, for the exit that explains it


class ProcessExited(ConnectionEnded):
    """The other side was a child process that has exited: its `returncode`, and the end of its stderr."""

    def __init__(self, name: str, returncode: int, stderr_tail: bytes) -> None:
        super().__init__(f"{name} {_how(returncode)}{_quoted(stderr_tail)}")
        self.name = name
        self.returncode = returncode
        self.stderr_tail = stderr_tail

    def __reduce__(self) -> tuple[type[ProcessExited], tuple[str, int, bytes]]:
        return ProcessExited, (self.name, self.returncode, self.stderr_tail)


class ChildProcess(Transport):
    """A program to start, and to talk to by its stdin and stdout, with one message per line.

    ```python
    agent = ChildProcess(["my-agent", "--stdio"])
    async with Peer(agent) as peer:
        await peer.request("initialize", {...})
        print(agent.process.pid)
    # here the agent, and everything that it has started, has exited
    ```

    When it exits by itself, pending requests fail with an error that says how it exited and quotes the last
    of its stderr; `peer.error` is then a `ProcessExited`. Closing the peer closes its stdin, then sends
    SIGTERM and then SIGKILL to the whole tree, each with as many seconds as `Grace` gives.

    `env` is the whole environment, ours unless given; `user` is the user to run it as, which only root may
    choose; `on_stderr` is called with every piece of its stderr; `grace` holds the deadlines of its stop
    (those of its owner unless given).
    """

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        user: str | int | None = None,
        name: str | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
        stderr_limit: int = 65536,
        grace: Grace | None = None,
    ) -> None:
        self._options = (argv, env, cwd, user, on_stderr, stderr_limit, grace)
        self._process: Process | None = None
        self.name = name or Process(argv).name

    @property
    def process(self) -> Process:
        """The process: its `pid`, `returncode`, `stderr_tail`. RuntimeError before the peer is opened."""
        if self._process is None:
            raise RuntimeError(f"{self.name!r} is not started yet: open its peer first")
        return self._process

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Start it."""
        if self._process is not None:
            raise RuntimeError(f"{self.name!r} was started before; it is used once: make a new ChildProcess")
        argv, env, cwd, user, on_stderr, stderr_limit, grace = self._options
        self._process = process = await Process.open(
            argv,
            env=env,
            cwd=cwd,
            user=user,
            stdin="pipe",
            on_stderr=on_stderr,
            stderr_limit=stderr_limit,
            name=self.name,
            grace=grace,
            scope=scope,
        )
        watch = await Scope.open(f"watches {self.name}", on_error="report", scope=scope)
        ends = _OurEnds(process)
        framing = Lines(limits.frame)
        backend = current_backend()
        if isinstance(backend, AsyncioBackend):
            return _SelectorChild(backend, framing, process, watch, ends)
        return _ChannelChild(framing, scope, process, watch, ends)


class _OurEnds:
    """Our own descriptors of the process's stdin and stdout."""

    def __init__(self, process: Process) -> None:
        self.read_fd, self.write_fd = duplicate_pipes(process)
        self._closed = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self.read_fd)
            os.close(self.write_fd)


class _ChildLink(Link):
    """The common part of both links to a process: they end when it is known how the process ended."""

    _process: Process
    _watch: Scope
    # What ended the pipes; None is the end of the process's stdout.
    _pipe_error: BaseException | None = None

    def _watch_process(self, process: Process, watch: Scope) -> None:
        self._process = process
        self._watch = watch
        self._pipes_ended = anyio.Event()

    def start(self, receiver: Receiver) -> None:
        """Begin to read, for this receiver, and to watch the process."""
        super().start(receiver)  # type: ignore[safe-super]  # the other base has one
        self._watch.spawn(self._on_exit, name="exit")
        self._watch.spawn(self._on_pipes_ended, name="pipes")

    async def _on_exit(self) -> None:
        await self._process.wait()
        # Not to the end of its stdout, which a grandchild may hold open.
        self.pass_on_remaining_input()
        self._explain()

    async def _on_pipes_ended(self) -> None:
        await self._pipes_ended.wait()
        await anyio.sleep(_EXIT_FOLLOWS)
        self._explain()

    def _end(self, error: BaseException | None) -> None:
        # Not passed on yet: the exit that follows explains it better.
        if not self._pipes_ended.is_set():
            self._pipe_error = error
            self._pipes_ended.set()

    def _explain(self) -> None:
        """Pass on the end of the link, once, with how the process ended."""
        process, error = self._process, self._pipe_error
        if process.returncode is not None:
            read_last_output(process)
            error = ProcessExited(process.name, process.returncode, process.stderr_tail)
            error.__cause__ = self._pipe_error
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.link_ended(error)

    def abort(self) -> None:
        """Close our ends, and begin to stop the process."""
        super().abort()  # type: ignore[safe-super]  # the other base has one
        self._watch.cancel("the connection is closed")
        self._process.cancel(Reason("parent", "the connection is closed"))

    async def close(self) -> None:
        """Wait until its whole tree has exited."""
        try:
            await super().close()
        finally:
            try:
                await self._watch.close()
            finally:
                await self._process.close()


class _SelectorChild(_ChildLink, SelectorLink):
    def __init__(
        self, backend: AsyncioBackend, framing: Framing, process: Process, watch: Scope, ends: _OurEnds
    ) -> None:
        SelectorLink.__init__(self, backend, framing, ends.read_fd, ends.write_fd, ends.close)
        self._watch_process(process, watch)


class _ChannelChild(_ChildLink, ChannelLink):
    def __init__(
        self, framing: Framing, scope: Scope, process: Process, watch: Scope, ends: _OurEnds
    ) -> None:
        channel = DescriptorChannel(current_backend(), ends.read_fd, ends.write_fd, ends.close)
        ChannelLink.__init__(self, channel, framing, scope, name=process.name)
        self._watch_process(process, watch)


def _how(status: int) -> str:
    if status >= 0:
        return f"exited with {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _quoted(tail: bytes) -> str:
    text = tail[-_SHOWN:].decode("utf-8", "replace").strip()
    return f": {text}" if text else ""
