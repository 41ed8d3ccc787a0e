"""`Process`: a child process tree, as its users hold it.

The object that users hold and the tree proper (`TreeChild`, in a scope of its own) are two, so that a process
which its users have dropped without closing it is noticed: the task that watches it refers to the tree alone.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from subprocess import DEVNULL, PIPE, STDOUT
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias, TypeVar

from quiesce.kernel.base import Reason, Site, describe, site_of
from quiesce.kernel.calls import owner_of
from quiesce.kernel.scope import RUNNING, Cancellable, current_backend, reason_of_cancel

from .pipe import CHUNK, Tail
from .process_tree import Tree
from .tree_child import TreeChild

if TYPE_CHECKING:
    from quiesce.kernel.base import Grace
    from quiesce.kernel.scope import Scope, ScopeCore

T = TypeVar("T")
Argv: TypeAlias = Sequence[str | os.PathLike[str]]
Stream: TypeAlias = Literal["pipe", "null", "inherit"]
ErrorStream: TypeAlias = Literal["tail", "stdout", "null", "inherit"]

_STREAMS: Final[dict[str, int | None]] = {"pipe": PIPE, "null": DEVNULL, "inherit": None}
_ERROR_STREAMS: Final[dict[str, int | None]] = {
    "tail": PIPE,
    "stdout": STDOUT,
    "null": DEVNULL,
    "inherit": None,
}


class Process(Cancellable):
    """A child process with all its descendants.

    ```python
    async with Process(["my-server", "--stdio"], stdin="pipe") as server:
        await server.write(b"hello\\n")
        async for line in server.lines():
            ...
    # here the server and everything it started have exited
    ```

    Or `server = await Process.open([...])` … `report = await server.close()`, from any task.

    Stopping closes its stdin, then sends SIGTERM, then SIGKILL, the signals to the whole tree, each with the
    seconds that `Grace` gives (`cancel`, `terminate`, `kill`). A step that cannot help is skipped: without a
    stdin of ours, SIGTERM comes at once. A task that reads meanwhile gets everything that was written, then
    `b""`; a task that writes gets `PipeClosed`.

    - `stdin`, `stdout`: `"pipe"` (use `write`, `read`, `lines`), `"null"` or `"inherit"`. Output that you do
      not read stays in the pipe; when that is full, the process waits.
    - `stderr`: `"tail"` is always read, so that the process never waits for it; the last `stderr_limit` bytes
      are in `stderr_tail`, and `on_stderr` is called with every piece. `"stdout"` sends it there too.
    - `env` is the whole environment (default: ours), `cwd` the working directory, and `user` the name or
      number of the user to run it as, which only root may choose.
    - `grace` holds the deadlines of its stop (default: those of its owner), and `scope` is its owner
      (default: the current scope). When the owner is stopped, its tasks end first and the process after them.

    If your program dies, in whatever way, a guard process kills the tree. A descendant that made a session of
    its own is found by an environment variable, or by its parent while that lives. One that also cleared its
    environment and lost its parent is not found.
    """

    def __init__(
        self,
        argv: Argv,
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        stdin: Stream = "null",
        stdout: Stream = "pipe",
        stderr: ErrorStream = "tail",
        on_stderr: Callable[[bytes], object] | None = None,
        stderr_limit: int = 65536,
        name: str | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> None:
        self._child: TreeChild | None = None
        if on_stderr is not None and stderr != "tail":
            raise ValueError(f'on_stderr needs stderr="tail", not {stderr!r}')
        if isinstance(stderr_limit, bool) or not isinstance(stderr_limit, int) or stderr_limit < 0:
            raise ValueError(f"stderr_limit must be a number of bytes, not {stderr_limit!r}")
        self._command = (argv, cwd, env, user)
        self._stdio = (
            _chosen("stdin", stdin, _STREAMS),
            _chosen("stdout", stdout, _STREAMS),
            _chosen("stderr", stderr, _ERROR_STREAMS),
        )
        self._on_stderr = on_stderr
        self._tail = Tail(stderr_limit)
        self._grace = grace
        self._owner = scope
        self.name = name or _name_of(argv)

    # Starting

    @classmethod
    async def open(
        cls,
        argv: Argv,
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        stdin: Stream = "null",
        stdout: Stream = "pipe",
        stderr: ErrorStream = "tail",
        on_stderr: Callable[[bytes], object] | None = None,
        stderr_limit: int = 65536,
        name: str | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> Self:
        """Start a process without a block: you close it, from any task. Options as for `Process`."""
        process = cls(
            argv,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            on_stderr=on_stderr,
            stderr_limit=stderr_limit,
            name=name,
            grace=grace,
            scope=scope,
        )
        await process._start(site_of(sys._getframe(1)))
        return process

    async def _start(self, site: Site) -> None:
        if self._child is not None:
            raise RuntimeError(f"process {self.name!r} was started before; make a new Process")
        backend = current_backend()
        owner = owner_of(backend, self._owner)
        owner.check_takes(f"start process {self.name!r} in")
        core = backend.make_core(
            name=self.name, site=site, on_error="report", grace=self._grace or owner.grace, parent=owner
        )
        argv, cwd, env, user = self._command
        stdin, stdout, stderr = self._stdio
        try:
            tree = Tree(argv, cwd=cwd, env=env, user=user, stdin=stdin, stdout=stdout, stderr=stderr)
        except BaseException:
            core.settle()
            raise
        self._child = child = TreeChild(core, self.name, site, tree, self._tail, self._on_stderr)
        try:
            cancelled = await child.start()
        except BaseException as error:
            if child.watched:
                core.stop(Reason("error", f"it was starting when {error!r} came", error))
            else:
                child.undo()
            raise
        if cancelled is not None:
            core.stop(reason_of_cancel(core, cancelled))
            await backend.wait_through(core.is_over, core.waiters)
            raise cancelled

    async def __aenter__(self) -> Self:
        await self._start(site_of(sys._getframe(1)))
        return self

    def _started(self) -> TreeChild:
        if self._child is None:
            raise self._how_to_open()
        return self._child

    def _find_core(self) -> ScopeCore | None:
        return self._child._core if self._child is not None else None

    def _lost_its_loop(self) -> None:
        self._started().terminate_without_loop()

    def _how_to_open(self) -> Exception:
        return RuntimeError(
            f"process {self.name!r} is not started: use `async with Process(...)` or `await Process.open(...)`"
        )

    def signal(self, number: int) -> None:
        """Send a signal to the whole tree; from any thread. Does nothing if it has exited."""
        self._started().signal(number)

    # Using

    @property
    def pid(self) -> int:
        """The id of the first process, which is also the id of its session and group."""
        return self._started().tree.pid

    @property
    def returncode(self) -> int | None:
        """The exit status of the first process, or minus the signal that ended it; None while it runs.

        511, which no process can return, if other code has reaped it: then the status is lost.
        """
        return self._child.returncode if self._child is not None else None

    async def wait(self) -> int:
        """Wait for the exit of the first process, even if its pipes are still open; returns its `returncode`.

        Its descendants may live on. They have exited when the process is closed.
        """
        return await self._started().wait_for_exit()

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` to its stdin; waits while the process does not read.

        Raises BrokenPipeError if no process can read it any more, PipeClosed if our end was closed. If you
        are cancelled, a part of it may have been written.
        """
        child = self._started()
        pipe = _piped(child.stdin, "stdin", self.name)
        try:
            view = memoryview(data)
        except TypeError:
            raise TypeError(f"write takes bytes, not {type(data).__name__}") from None
        try:
            await pipe.write(view.cast("B") if view.nbytes else view)
        except BrokenPipeError:
            raise BrokenPipeError(f"{self.name!r} does not read its stdin any more{self._how()}") from None

    def close_stdin(self) -> None:
        """Close its stdin: the process sees the end of its input."""
        _piped(self._started().stdin, "stdin", self.name).close()

    async def read(self, most: int = CHUNK) -> bytes:
        """The next bytes of its stdout, at least one and at most `most`; `b""` at the end."""
        return await _piped(self._started().stdout, "stdout", self.name).read(most)

    def lines(self, *, limit: int = 1 << 25) -> AsyncIterator[bytes]:
        """Its stdout, line by line, without the line ends; the last line need not have one.

        A line over `limit` bytes raises `LineTooLong` and is skipped: iterate again to go on after it. After
        a `break`, what was not read is left for the next reader.
        """
        _piped(self._started().stdout, "stdout", self.name)
        if limit < 0:
            raise ValueError(f"limit must be a number of bytes, not {limit!r}")
        return _Lines(self, limit)

    @property
    def stderr_tail(self) -> bytes:
        """The last `stderr_limit` bytes that it wrote to stderr."""
        return bytes(self._tail)

    def _how(self) -> str:
        status = self.returncode
        if status is None:
            return ""
        return f" (it exited with {status})" if status >= 0 else f" (signal {-status} ended it)"

    # Dropped

    def __del__(self) -> None:
        child = getattr(self, "_child", None)
        if child is None or child._core.closed or child.our_pid != os.getpid():
            return
        core = child._core
        if child.state != RUNNING:
            child.close_pipes()  # no task can be using them, and the loop may have ended
            core.backend.run_from_anywhere(lambda: core.stop(Reason("parent", "nobody holds it any more")))
            return
        core.backend.run_from_anywhere(lambda: core.abandon(Reason("parent", "dropped without close()")))
        warnings.warn(
            f"process {self.name!r} (pid {child.tree.pid}), started at {describe(core._site)}, was dropped "
            "without close(): its tree is being stopped",
            ResourceWarning,
            source=self,
            stacklevel=1,
        )

    def __repr__(self) -> str:
        if self._child is None:
            return f"<Process {self.name!r} not started>"
        return f"<Process {self.name!r} pid {self._child.tree.pid}{self._how()}>"


def duplicate_pipes(process: Process) -> tuple[int, int]:
    """Descriptors of our own: to read its stdout, and to write to its stdin.

    They are non-blocking, as those of the process.
    """
    child = process._started()
    read_fd = os.dup(_piped(child.stdout, "stdout", process.name).pipe.fd)
    try:
        return read_fd, os.dup(_piped(child.stdin, "stdin", process.name).fd)
    except BaseException:
        os.close(read_fd)
        raise


def read_last_output(process: Process) -> None:
    """Read what it wrote to stderr just before it exited, and add it to its `stderr_tail`."""
    process._started().read_rest_of_stderr()


class _Lines:
    # Not an async generator: a `break` would leave one behind that has to be finalised later.

    def __init__(self, process: Process, limit: int) -> None:
        self._process = process  # so that a process of which only the lines are held is not taken for dropped
        self._limit = limit

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> bytes:
        output = self._process._started().stdout
        assert output is not None
        line = await output.read_line(self._limit)
        if line is None:
            raise StopAsyncIteration
        return line


def _chosen(which: str, given: object, streams: dict[str, int | None]) -> int | None:
    if not isinstance(given, str) or given not in streams:
        allowed = ", ".join(map(repr, streams))
        raise ValueError(f"{which} must be one of {allowed}, not {given!r}")
    return streams[given]


def _name_of(argv: object) -> str:
    """The program's name. Anything that is not a command gets its error from `Tree`."""
    if isinstance(argv, Sequence) and not isinstance(argv, (str, bytes)) and argv:
        first: object = argv[0]
        if isinstance(first, (str, os.PathLike)):
            return os.path.basename(os.fspath(first)) or "process"
    return "process"


def _piped(pipe: T | None, which: str, name: str) -> T:
    if pipe is None:
        raise RuntimeError(f'process {name!r} has no pipe at its {which}: start it with {which}="pipe"')
    return pipe
