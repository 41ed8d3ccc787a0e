"""Locks that say which process does something, and that end with the process, however that ends.

They are POSIX record locks on bytes of a file that is used for nothing else.

- A record lock belongs to the process. It ends with it, also at SIGKILL, and a forked child does not have it. A
  time stamp would leave a dead process its locks until the time has run out, and take them from a stopped one.
- Two users in one process do not lock each other out. So this module knows what its own process has locked.
- A process that closes any descriptor of a file loses all its locks on it. So there is one descriptor per file
  and process, for everybody in it.
- The file is removed by the last process that closes it. Every process that has it open holds a shared lock on its
  first byte; who gets that byte exclusively is alone. A process that opens the file looks afterwards
  whether it is still the file of that name.

Where there are no record locks (Windows), only users in the same process lock each other out.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
import threading
from contextlib import suppress
from typing import Any

from .contract import StoreError

fcntl: Any = None
with suppress(ImportError):  # Windows has none
    import fcntl

_OPEN_BYTE = 0
_files: dict[tuple[int, int], _File] = {}
# Reentrant: the garbage collector may drop a lease in the thread that holds it.
_lock = threading.RLock()


class _File:
    """A file of locks, opened once in this process."""

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int]) -> None:
        self.path = path
        self.descriptor = descriptor
        self.identity = identity
        self.users = 0
        self.locked: set[int] = set()


class ProcessLocks:
    """The locks in the file at `path`, for one user: opened on first use, until `close`."""

    def __init__(self, path: str, beside: str) -> None:
        self.path = path
        self._beside = beside  # the file whose users may use the locks
        self._file: _File | None = None
        self._mine: set[int] = set()

    def take(self, place: int) -> bool:
        """Lock this place, a number of 1 or more; False if it is locked already, here or in another process."""
        with _lock:
            file = self._open()
            if place in file.locked or not _lock_byte(file.descriptor, place):
                return False
            file.locked.add(place)
            self._mine.add(place)
            return True

    def is_taken(self, place: int) -> bool:
        """Whether this place is locked, here or in another process."""
        with _lock:
            file = self._open()
            return place in file.locked or _is_locked_elsewhere(file.descriptor, place)

    def release(self, place: int) -> None:
        """Unlock what was locked through this object; nothing happens if it was not, or not any more."""
        with _lock:
            if place not in self._mine:
                return
            self._mine.discard(place)
            if self._file is not None and place in self._file.locked:
                self._file.locked.discard(place)
                _unlock_byte(self._file.descriptor, place)

    def close(self) -> None:
        """Release everything that was locked through this object; remove the file if no one else uses it."""
        with _lock:
            file, self._file = self._file, None
            mine, self._mine = self._mine, set()
            if file is None or file.identity not in _files:  # `_files` is empty in a forked child
                return
            for place in mine & file.locked:
                file.locked.discard(place)
                _unlock_byte(file.descriptor, place)
            file.users -= 1
            if file.users:
                return
            del _files[file.identity]
            if _lock_byte(file.descriptor, _OPEN_BYTE) and _identity(file.path) == file.identity:
                with suppress(OSError):
                    os.unlink(file.path)
            os.close(file.descriptor)

    def _open(self) -> _File:
        if self._file is not None and _files.get(self._file.identity) is self._file:
            return self._file
        found = _files.get(_identity(self.path) or (0, 0))
        if found is None:
            try:
                mode = stat.S_IMODE(os.stat(self._beside).st_mode) & 0o666
                found = _open_file(self.path, mode)
            except OSError as error:
                raise StoreError(
                    f"the locks of {self._beside!r} in {self.path!r} cannot be used ({error}): "
                    "check the permissions of that file and of its directory"
                ) from error
            _files[found.identity] = found
        found.users += 1
        self._file = found
        return found


def _open_file(path: str, mode: int) -> _File:
    while True:
        is_new = not os.path.exists(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), mode)
        try:
            if is_new:
                with suppress(OSError):  # the umask has taken something away
                    os.fchmod(descriptor, mode)
            if fcntl is not None:
                # It waits, for as long as another process takes to remove the file.
                fcntl.lockf(descriptor, fcntl.LOCK_SH, 1, _OPEN_BYTE)
            identity = _identity(descriptor)
            if identity is not None and _identity(path) == identity:
                return _File(path, descriptor, identity)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock_byte(descriptor: int, place: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError:
        return False
    return True


def _is_locked_elsewhere(descriptor: int, place: int) -> bool:
    if fcntl is None:
        return False
    # A question, not an attempt: that would be in the way of a process that takes the lock at this moment.
    if sys.platform == "darwin":
        question = struct.pack("qqihh", place, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
        kind: int = struct.unpack("qqihh", fcntl.fcntl(descriptor, fcntl.F_GETLK, question))[3]
    else:
        question = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        kind = struct.unpack("hhqqi", fcntl.fcntl(descriptor, fcntl.F_GETLK, question))[0]
    return bool(kind != fcntl.F_UNLCK)


def _unlock_byte(descriptor: int, place: int) -> None:
    if fcntl is not None:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, place)


def _identity(file: str | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _forget_in_child() -> None:
    global _lock
    # A forked child has none of the locks. It closes the descriptors, which costs the parent nothing.
    _lock = threading.RLock()
    for file in _files.values():
        with suppress(OSError):
            os.close(file.descriptor)
    _files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
