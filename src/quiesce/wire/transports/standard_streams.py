"""This process's own stdin and stdout as a way to whoever started it.

Invariants
- Nobody else reads or writes there meanwhile. The link has descriptors of its own; 0 reads from nowhere and 1 goes where stderr goes, so that a stray
  `print()`, or a child process that inherits them, can neither spoil what is said nor eat what is sent.
- What belongs to others stays as it was. Not to block is a property of the open file, which a shell and all its children may share: where the system
  allows it the link opens the pipe or terminal anew, elsewhere the property is put back at the end.
- Closing puts everything back, and what was printed meanwhile is not left to come out on the stdout that is back. A program that has moved stdout
  away itself, for good, says where to (`write_fd`): then 1 is left as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from typing import TYPE_CHECKING

from quiesce.wire.base import Lines
from quiesce.wire.links import Transport, descriptor_link

if TYPE_CHECKING:
    from quiesce import Scope
    from quiesce.wire.base import Limits
    from quiesce.wire.links import Link


class StdioTransport(Transport):
    """Whoever has started this process: what `stdio()` returns."""

    name = "stdio"

    def __init__(self, *, protect: bool = True, write_fd: int = 1) -> None:
        self._protect = protect
        self._write_fd = write_fd

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Take stdin and stdout."""
        taken = _Taken(protect=self._protect, write_fd=self._write_fd)
        try:
            return descriptor_link(
                taken.read_fd, taken.write_fd, taken.put_back, Lines(limits.frame), scope, self.name
            )
        except BaseException:
            taken.put_back()
            raise


def stdio(*, protect: bool = True, write_fd: int = 1) -> StdioTransport:
    """A way to whoever has started this process, by its stdin and stdout, one message a line.

    ```python
    async with Peer(stdio(), {"ping": ping}) as peer:
        await peer.wait_closed()        # until our stdin ends
    ```

    Meanwhile `print()`, and whatever else writes to stdout, goes to stderr, and nobody else finds anything to read; with `protect=False` they stay as
    they are. Closing the peer puts everything back. `write_fd` is for a program that has moved its stdout elsewhere, to keep it clean before and after
    too; it stays open.
    """
    return StdioTransport(protect=protect, write_fd=write_fd)


class _Taken:
    """Our own descriptors of stdin and stdout, and how to put everything back."""

    in_use = False

    def __init__(self, *, protect: bool, write_fd: int) -> None:
        if sys.platform == "win32":
            raise NotImplementedError(
                "stdio() needs a system with POSIX descriptors; on Windows use a socket"
            )
        if _Taken.in_use:
            raise RuntimeError("stdin and stdout are in use by another stdio(): close its peer first")
        self._saved: list[tuple[int, int]] = []  # (ours, whose place it has)
        self._blocked: list[int] = []  # those that we share and that blocked before
        self._ours: list[int] = []
        self._done = False
        _Taken.in_use = True
        try:
            self.read_fd = self._take(0, os.O_RDONLY, "stdin")
            self.write_fd = self._take(write_fd, os.O_WRONLY, "stdout")
            if protect:
                self._protect((0, 1) if write_fd == 1 else (0,))
        except BaseException:
            self.put_back()
            raise

    def _take(self, fd: int, mode: int, name: str) -> int:
        # Closed when Python began: by now, something else may have its number.
        if fd < 2 and getattr(sys, f"__{name}__") is None:
            raise OSError(errno.EBADF, f"this process was started without {name}")
        try:
            kind = os.fstat(fd).st_mode
        except OSError as error:
            raise OSError(error.errno, f"this process has no {name} any more: {error.strerror}") from error
        ours = _opened_anew(fd, mode) if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind) else None
        if ours is None:
            ours = _duplicate(fd)
            if os.get_blocking(ours):  # a plain file never blocks, and minds nothing
                os.set_blocking(ours, False)
                self._blocked.append(ours)
        self._ours.append(ours)
        return ours

    def _protect(self, taken: tuple[int, ...]) -> None:
        for fd in taken:
            self._saved.append((_duplicate(fd), fd))
        with open(os.devnull, "rb") as nowhere:
            os.dup2(nowhere.fileno(), 0)
        if 1 in taken:
            stdout_to_stderr()

    def put_back(self) -> None:
        """As it was; twice is fine."""
        if self._done:
            return
        self._done = True
        if self._saved:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()
        for fd in self._blocked:
            with contextlib.suppress(OSError):
                os.set_blocking(fd, True)
        for saved, fd in self._saved:
            os.dup2(saved, fd)
            os.close(saved)
        for fd in self._ours:
            os.close(fd)
        _Taken.in_use = False


def move_stdout() -> int:
    """From here on what is printed goes to stderr, to the end of the process; returns a descriptor of what stdout was."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "this process was started without stdout")
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    try:
        moved = _duplicate(1)
    except OSError as error:
        raise OSError(error.errno, f"this process has no stdout any more: {error.strerror}") from error
    stdout_to_stderr()
    sys.stdout = sys.stderr  # in the same buffer, so that it comes out in order
    return moved


def stdout_to_stderr() -> None:
    """What is written to 1 goes where 2 goes."""
    try:
        os.dup2(2, 1)
    except OSError:  # there is no stderr either
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)


def _duplicate(fd: int) -> int:
    """Never 0, 1 or 2, though these may be free: somebody would take it for what it is not."""
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _opened_anew(fd: int, mode: int) -> int | None:
    """The same pipe or terminal as an open file of our own; None where the system does not do that."""
    if sys.platform != "linux":
        return None
    try:
        fresh = os.open(f"/proc/self/fd/{fd}", mode | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # not ours to open, or nobody at the other end any more
        return None
    if fresh > 2:
        return fresh
    try:
        return _duplicate(fresh)
    finally:
        os.close(fresh)
