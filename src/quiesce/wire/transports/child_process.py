"""A child process as the other side, by its stdin and stdout.

Invariants
- The process, with everything it has started, is a `Process` in the connection's scope: when the peer is closed the whole tree is gone. It is asked by the
  end of its input first, and that comes after the last answer was written.
- Its exit is watched apart from its stdout, which a grandchild may hold open for ever: when it has exited, what it had written is read, and then the
  connection ends.
- However that is noticed first (the exit, the end of its stdout, a write that fails), the connection is told what became of the process: its
  status, and the last of what it wrote to stderr.
- The link has descriptors of its own: the process's ladder may close its ends at any moment.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import anyio

from quiesce import Process, Reason, Scope
from quiesce.kernel.inner import CHUNK, LARGEST, Argv, AsyncioBackend
from quiesce.wire.base import ConnectionEnded, Framing, Lines
from quiesce.wire.links import (
    ChannelLink,
    DescriptorChannel,
    Link,
    Receiver,
    SelectorLink,
    Transport,
    pass_on_remaining_input,
)

if TYPE_CHECKING:
    from quiesce import Grace
    from quiesce.wire.base import Limits

_SHOWN: Final = 2000  # bytes of stderr that an error quotes
_EXIT_FOLLOWS: Final = 0.5  # seconds from the end of its stdout in which its exit still explains that


class ProcessExited(ConnectionEnded):
    """The other side was a child process, and it has exited: with `returncode`, and `stderr_tail` as its last words."""

    def __init__(self, name: str, returncode: int, stderr_tail: bytes) -> None:
        super().__init__(f"{name} {_how(returncode)}{_quoted(stderr_tail)}")
        self.name = name
        self.returncode = returncode
        self.stderr_tail = stderr_tail

    def __reduce__(self) -> tuple[type[ProcessExited], tuple[str, int, bytes]]:
        return ProcessExited, (self.name, self.returncode, self.stderr_tail)


class ChildProcess(Transport):
    """A program to be started, and spoken to by its stdin and stdout, one message a line.

    ```python
    agent = ChildProcess(["my-agent", "--stdio"])
    async with Peer(agent) as peer:
        await peer.request("initialize", {...})
        print(agent.process.pid)
    # here the agent, and everything that it has started, is gone
    ```

    When it exits by itself, the requests that wait fail with an error that says how, and quotes the last of its stderr; `peer.error` is then a
    `ProcessExited`. Closing the peer closes its stdin, then sends SIGTERM, then SIGKILL, the signals to the whole tree, each with the seconds that
    `Grace` gives.

    `env` is the whole environment, ours unless given; `user` is whom to run it as, which only root may say; `on_stderr` is called with every piece of
    its stderr; `grace` holds the deadlines of its stop (those of its owner unless given).
    """

    def __init__(
        self,
        argv: Argv,
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
            raise RuntimeError(f"{self.name!r} is not started yet: it is when its peer is opened")
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
        backend = scope._opened().backend
        if isinstance(backend, AsyncioBackend):
            return _SelectorChild(backend, framing, process, watch, ends)
        return _ChannelChild(framing, scope, process, watch, ends)


class _OurEnds:
    """Our own descriptors of the process's stdin and stdout."""

    def __init__(self, process: Process) -> None:
        child = process._started()
        assert child.stdin is not None
        assert child.stdout is not None
        self.read_fd = os.dup(child.stdout.pipe.fd)
        try:
            self.write_fd = os.dup(child.stdin.fd)
        except BaseException:
            os.close(self.read_fd)
            raise
        self._closed = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self.read_fd)
            os.close(self.write_fd)


class _ChildLink(Link):
    """What both kinds of link to a process have in common: its end is told when it is known what became of the process."""

    _process: Process
    _watch: Scope
    _cut: BaseException | None = None  # what has ended the pipes first; None is the end of its stdout
    _explained = False

    def _attend(self, process: Process, watch: Scope) -> None:
        self._process = process
        self._watch = watch
        self._pipes_ended = anyio.Event()

    def start(self, receiver: Receiver) -> None:
        """Begin to read, and to watch the process."""
        super().start(receiver)  # type: ignore[safe-super]  # the other base has one
        self._watch.spawn(self._attend_exit, name="exit")
        self._watch.spawn(self._attend_pipes, name="pipes")

    def _read_now(self) -> bytes | None:
        raise NotImplementedError  # abstract: each kind has its own descriptors

    async def _attend_exit(self) -> None:
        await self._process.wait()
        pass_on_remaining_input(self, self._read_now)
        self._explain()

    async def _attend_pipes(self) -> None:
        await self._pipes_ended.wait()
        await anyio.sleep(_EXIT_FOLLOWS)
        self._explain()

    def _end(self, error: BaseException | None) -> None:
        if not self._pipes_ended.is_set():
            self._cut = error
            self._pipes_ended.set()

    def _explain(self) -> None:
        """Tell the connection, once, what became of the process."""
        process, error = self._process, self._cut
        if process.returncode is not None:
            read_last_output(process)
            error = ProcessExited(process.name, process.returncode, process.stderr_tail)
            error.__cause__ = self._cut
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.link_ended(error)

    def abort(self) -> None:
        """Close our ends, and begin to stop the process."""
        super().abort()  # type: ignore[safe-super]  # the other base has one
        self._watch.cancel("the connection is closed")
        self._process.cancel(Reason("parent", "the connection is closed"))

    async def close(self) -> None:
        """Wait until its whole tree is gone."""
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
        self._attend(process, watch)

    def _read_now(self) -> bytes | None:
        return self.read_now()


class _ChannelChild(_ChildLink, ChannelLink):
    def __init__(
        self, framing: Framing, scope: Scope, process: Process, watch: Scope, ends: _OurEnds
    ) -> None:
        backend = scope._opened().backend
        self._ends = DescriptorChannel(backend, ends.read_fd, ends.write_fd, ends.close)
        ChannelLink.__init__(self, self._ends, framing, scope, name=process.name)
        self._attend(process, watch)

    def _read_now(self) -> bytes | None:
        return self._ends.read_now()


def read_last_output(process: Process) -> None:
    """What it has written to stderr, though nobody has got round to reading that yet."""
    child = process._started()
    for _ in range(0, LARGEST, CHUNK):
        data = child.stderr.read_now(CHUNK) if child.stderr is not None else None
        if not data:
            break
        child._heard(data)


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
