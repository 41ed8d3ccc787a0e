"""This process's own stdin and stdout, as a way to the process that started it.

Invariants
- Nothing else reads or writes there meanwhile. The link has descriptors of its own; descriptor 0 reads from
  nowhere, and 1 goes where stderr goes. So a stray `print()`, or a child process that inherits them, can
  neither spoil the messages nor read them.
- What others share is left as it was. Being non-blocking is a property of the open file, which a shell and
  all its children may share. Where the system allows it, the link opens the pipe or terminal a second time;
  elsewhere the property is restored at the end.
- Closing restores everything; what was printed meanwhile is flushed before that, so that it does not appear
  on the restored stdout. A program that has moved its stdout itself, for good, passes the new descriptor
  (`write_fd`): then 1 is left as it is.
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
    """The process that started this one: what `stdio()` returns."""

    name = "stdio"

    def __init__(self, *, protect: bool = True, write_fd: int = 1) -> None:
        self._protect = protect
        self._write_fd = write_fd

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Take over stdin and stdout."""
        taken = _Taken(protect=self._protect, write_fd=self._write_fd)
        try:
            return descriptor_link(
                taken.read_fd, taken.write_fd, taken.put_back, Lines(limits.frame), scope, self.name
            )
        except BaseException:
            taken.put_back()
            raise


def stdio(*, protect: bool = True, write_fd: int = 1) -> StdioTransport:
    """Return a transport to the process that started this one, by stdin and stdout, one message per line.

    ```python
    async with Peer(stdio(), {"ping": ping}) as peer:
        await peer.wait_closed()        # until our stdin ends
    ```

    Meanwhile `print()`, and everything else that writes to stdout, goes to stderr, and others that read stdin
    find nothing; with `protect=False` both stay as they are. Closing the peer restores everything. `write_fd`
    is for a program that has moved its stdout elsewhere, to keep it clean before and after too; it stays
    open.
    """
    return StdioTransport(protect=protect, write_fd=write_fd)


class _Taken:
    """Our own descriptors of stdin and stdout, and how to restore everything."""

    #: Whether another one exists. Two of them would each restore what the other has changed.
    in_use = False

    def __init__(self, *, protect: bool, write_fd: int) -> None:
        if sys.platform == "win32":
            raise NotImplementedError(
                "stdio() needs a system with POSIX descriptors; on Windows use a socket"
            )
        if _Taken.in_use:
            raise RuntimeError("stdin and stdout are in use by another stdio(): close its peer first")
        # Copies of 0 and 1, and the descriptors that they are copies of.
        self._saved: list[tuple[int, int]] = []
        # Our descriptors that share their open file with others, and were blocking before.
        self._blocked: list[int] = []
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
        # If it was closed when Python started, something else may have this number by now.
        if fd < 2 and getattr(sys, f"__{name}__") is None:
            raise OSError(errno.EBADF, f"this process was started without {name}")
        try:
            kind = os.fstat(fd).st_mode
        except OSError as error:
            raise OSError(error.errno, f"this process has closed its {name}: {error.strerror}") from error
        # Not for sockets, which cannot be opened by a path, nor for plain files, which never block: and a
        # second open file would have a position of its own.
        ours = _opened_anew(fd, mode) if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind) else None
        if ours is None:
            ours = _duplicate(fd)
            if os.get_blocking(ours):
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
        """Restore everything. May be called twice."""
        if self._done:
            return
        self._done = True
        if self._saved:
            # While descriptor 1 still leads to stderr. `sys.stdout` may be None, closed, or replaced by
            # anything.
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
    """Send everything that is printed to stderr, for good; return a descriptor of the former stdout."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "this process was started without stdout")
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    try:
        moved = _duplicate(1)
    except OSError as error:
        raise OSError(error.errno, f"this process has closed its stdout: {error.strerror}") from error
    stdout_to_stderr()
    sys.stdout = sys.stderr  # the same buffer, so that the output of both stays in order
    return moved


def stdout_to_stderr() -> None:
    """Let descriptor 1 lead to where 2 leads."""
    try:
        os.dup2(2, 1)
    except OSError:  # there is no stderr either
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)


def _duplicate(fd: int) -> int:
    """Duplicate a descriptor, but never as 0, 1 or 2, even if they are free: these are for stdio."""
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _opened_anew(fd: int, mode: int) -> int | None:
    """Open the same pipe or terminal a second time; return None where the system cannot do that."""
    if sys.platform != "linux":
        return None
    try:
        fresh = os.open(f"/proc/self/fd/{fd}", mode | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # we may not open it, or the other end is closed
        return None
    if fresh > 2:
        return fresh
    try:
        return _duplicate(fresh)
    finally:
        os.close(fresh)
