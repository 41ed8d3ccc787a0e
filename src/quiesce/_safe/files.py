"""Files below some folders, opened in a way that cannot be redirected.

A model names a path, a user approves it, and a while later the file is opened. A program, another user or a
repository full of links may change the folder in between, and must not be able to make that open reach
another file.

Invariants
- A path is resolved once, links included, to a canonical path that must be in one of the folders. That path
  is then walked from the root of the file system with a descriptor for each step, and no step follows a link.
  A link that appears in between is an error, never a way out.
- A write replaces only what was approved: the file at the same canonical path, with the same bytes (`Seen`).
  Writes of this process to one file are serialised; to detect a change by another program, the file is
  checked once more just before the rename.
- A write creates a new file with a random name, with `O_EXCL` and its final permissions, synchronises it to
  disk and renames it. A reader sees the old content or the new, and a private file never has wider
  permissions, not even for a moment.
- Only regular files are touched, and none that has a second name (a hard link), which may be outside the
  folders.

Everything here blocks, so call it from a thread.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

#: Larger files, in bytes, are neither compared nor replaced.
LARGEST: Final = 64 << 20
_HAS_DESCRIPTORS: Final = os.open in os.supports_dir_fd
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Opening a named pipe blocks until its other end is opened; with O_NONBLOCK it returns, and the pipe can be
# refused.
_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | _NO_LINK
# With O_PATH, only permission to pass through the folder is needed, not to list it: as when a path is opened.
_STEP: Final = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | _NO_LINK
_LINKS: Final = (errno.ELOOP, errno.ENOTDIR)
_ACCESS_LIST: Final = "system.posix_acl_access"


class BadPath(OSError):
    """The file tools refuse to touch a path; the message says why."""


class OutsideOfFolders(BadPath):
    """The path leads out of the folders."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A file at one moment: its canonical path, and a digest of its bytes, or None if it did not exist."""

    path: str
    digest: bytes | None = None


class Approved:
    """The files as they were shown when the user approved the calls that write them, by the ids of the calls.

    An approval is good for one write. A second call with the same id needs its own approval.
    """

    def __init__(self) -> None:
        # A used approval leaves an empty list, so that reuse is told apart from a call that needed none.
        self._shown: dict[str, list[Seen]] = {}

    def add(self, call_id: str, seen: Seen) -> None:
        """Record that a call was approved, and the file as it was shown."""
        self._shown.setdefault(call_id, []).append(seen)

    def take(self, call_id: str) -> Seen | None:
        """The file as it was shown; None if the call needed no approval. Raises `BadPath` if it was used."""
        shown = self._shown.get(call_id)
        if shown is None:
            return None
        if not shown:
            raise BadPath(
                f"the approval of call {call_id!r} was for one write, and has been used: nothing was written"
            )
        return shown.pop(0)

    def clear(self) -> None:
        """Forget all approvals, because their calls have ended and new calls may have the same ids."""
        self._shown.clear()


class Folders:
    """The files below some folders. Relative paths start at the first folder.

    ```python
    folders = Folders(["/srv/project"])
    seen, before = folders.look("README.md")
    folders.write("README.md", b"...", seen)    # BadPath if it is no longer the same file
    ```
    """

    def __init__(self, roots: Sequence[str | os.PathLike[str]]) -> None:
        self._given_roots = [os.path.abspath(root) for root in roots]
        self._roots = [os.path.realpath(root) for root in self._given_roots]

    @property
    def roots(self) -> Sequence[str]:
        """The canonical paths of the folders, as they were when this object was made.

        A link that replaces one of them later leads out of it.
        """
        return tuple(self._roots)

    def has(self, canonical: str) -> bool:
        """Whether a canonical path is one of the folders, or below one."""
        return any(_is_below(canonical, root) for root in self._roots)

    @property
    def home(self) -> str:
        """The first folder, where relative paths start."""
        return self._roots[0]

    def resolve(self, path: str) -> str:
        """The canonical path of a file or folder, which need not exist.

        Raises `BadPath` if it is outside the folders.
        """
        try:
            # `normpath` first: `..` is resolved in the text of the path, as editors do, and not after
            # following a link.
            found = os.path.realpath(
                os.path.normpath(os.path.join(self._given_roots[0], os.path.expanduser(path)))
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise BadPath(f"{path!r} is not a valid path: {error}") from error
        if not self.has(found):
            where = (
                self._given_roots[0]
                if len(self._given_roots) == 1
                else f"one of {', '.join(self._given_roots)}"
            )
            raise OutsideOfFolders(f"{path!r} is not in {where}: the file tools work only there")
        return found

    def relative(self, canonical: str) -> str:
        """A canonical path relative to the first folder; unchanged if it is in another one."""
        return os.path.relpath(canonical, self.home) if _is_below(canonical, self.home) else canonical

    # Reading

    def open(self, path: str) -> BinaryIO:
        """Open a regular file for reading. The caller closes it."""
        with self._parent(path, self.resolve(path)) as (folder, name):
            return self._open(folder, name, path)

    def look(self, path: str) -> tuple[Seen, bytes | None]:
        """The file as it is now, and its bytes, or None if it does not exist.

        Raises `BadPath` if it cannot be read.
        """
        canonical = self.resolve(path)
        try:
            with self._parent(path, canonical) as (folder, name):
                seen, data, _ = self._look(folder, name, path, canonical)
        except FileNotFoundError:
            return Seen(canonical), None
        return seen, data

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted. The names of folders end with a slash."""
        canonical = self.resolve(path)
        with self._parent(path, canonical) as (folder, name):
            try:
                # Without O_PATH: a descriptor that was opened with it cannot be listed.
                listed = (
                    _open_at(folder, name, _STEP & ~getattr(os, "O_PATH", 0)) if _HAS_DESCRIPTORS else name
                )
            except OSError as error:
                if error.errno in _LINKS:
                    raise BadPath(f"{path!r} is not a folder") from error
                raise BadPath(f"{path!r} cannot be listed: {error.strerror}") from error
        try:
            with os.scandir(listed) as entries:
                return sorted(
                    f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                    for entry in entries
                )
        finally:
            if isinstance(listed, int):
                os.close(listed)

    # Writing

    def write(self, path: str, data: bytes, seen: Seen | None = None) -> bool:
        """Replace the content of a file, entirely or not at all, and return whether the file existed.

        With `seen`, the file must be the one that `look` returned, with the same bytes.
        """
        canonical = self.resolve(path)
        if seen is not None and seen.path != canonical:
            raise BadPath(
                f"{path!r} was {seen.path!r} when it was approved, and is {canonical!r} now: nothing was written"
            )
        # The folder is created for a new file only. If a file that was seen is gone, it has changed.
        is_new = seen is None or seen.digest is None
        try:
            with (
                _one_at_a_time(canonical),
                self._parent(path, canonical, make=is_new) as (folder, name),
            ):
                now, _, status = self._look(folder, name, path, canonical)
                if seen is not None and seen != now:
                    raise _changed(path)
                _replace(folder, name, path, data, status)
                return status is not None
        except FileNotFoundError:
            if is_new:
                raise
            raise _changed(path) from None

    # Opening step by step

    @contextmanager
    def _parent(
        self, given_path: str, canonical: str, *, make: bool = False
    ) -> Iterator[tuple[int | None, str]]:
        """Yield a descriptor of the folder that a file is in, and the file's name in it."""
        if not _HAS_DESCRIPTORS:  # Windows cannot open a file relative to a folder's descriptor
            if make:
                os.makedirs(os.path.dirname(canonical), exist_ok=True)
            yield None, canonical
            return
        *above, name = canonical.strip(os.sep).split(os.sep)
        at = os.open(os.sep, _STEP)
        try:
            for part in above:
                try:
                    below = _step(at, part, make=make)
                except FileNotFoundError:
                    raise FileNotFoundError(errno.ENOENT, f"there is no file {given_path!r}") from None
                except OSError as error:
                    if error.errno in _LINKS:
                        raise BadPath(f"{part!r}, on the way to {given_path!r}, is not a folder") from error
                    raise BadPath(f"{given_path!r} cannot be reached: {part!r}: {error.strerror}") from error
                os.close(at)
                at = below
            yield at, name or "."
        finally:
            os.close(at)

    def _open(self, folder: int | None, name: str, given_path: str) -> BinaryIO:
        try:
            descriptor = _open_at(folder, name, _READ)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, f"there is no file {given_path!r}") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise BadPath(f"{given_path!r} became a link while it was opened") from error
            raise BadPath(f"{given_path!r} cannot be read: {error.strerror}") from error
        try:
            # Of the descriptor and not of the path, which may lead to another file by now.
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise BadPath(f"{given_path!r} is a folder")
            if not stat.S_ISREG(status.st_mode):
                raise BadPath(f"{given_path!r} is not a regular file")
            if status.st_nlink > 1:
                raise BadPath(
                    f"{given_path!r} has another name (a hard link), perhaps outside the folder, "
                    "so the file tools do not touch it"
                )
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def _look(
        self, folder: int | None, name: str, given_path: str, canonical: str
    ) -> tuple[Seen, bytes | None, os.stat_result | None]:
        try:
            opened = self._open(folder, name, given_path)
        except FileNotFoundError:
            return Seen(canonical), None, None
        with opened:
            status = os.fstat(opened.fileno())
            data = opened.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise BadPath(f"{given_path!r} has more than {LARGEST} bytes, too many to compare and replace")
        return Seen(canonical, hashlib.sha256(data).digest()), data, status


def encoded(path: str, text: str) -> bytes:
    """Encode a text for a file. Raises `BadPath` if it cannot be encoded as UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadPath(f"the text for {path!r} cannot be written as UTF-8: {error}") from None


# The number of writes by canonical path, waiting ones included. A lock is removed with its last write.
_writing: Counter[str] = Counter()
_locks: dict[str, threading.Lock] = {}
_counting = threading.Lock()


@contextmanager
def _one_at_a_time(canonical: str) -> Iterator[None]:
    """Serialise this process's writes to one file, so that each sees what the previous one has written."""
    with _counting:
        _writing[canonical] += 1
        lock = _locks.setdefault(canonical, threading.Lock())
    try:
        with lock:
            yield
    finally:
        with _counting:
            _writing[canonical] -= 1
            if not _writing[canonical]:
                del _writing[canonical], _locks[canonical]


def _changed(path: str) -> BadPath:
    return BadPath(f"{path!r} has changed since it was approved: nothing was written")


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _open_at(folder: int | None, name: str, flags: int, mode: int = 0o666) -> int:
    return os.open(name, flags, mode, dir_fd=folder) if folder is not None else os.open(name, flags, mode)


def _step(at: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, _STEP, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(part, dir_fd=at)
    except FileExistsError:  # created by another program just now
        pass
    return os.open(part, _STEP, dir_fd=at)


def _replace(folder: int | None, name: str, given_path: str, data: bytes, old: os.stat_result | None) -> None:
    """Write a new file next to the old one, and rename it. `old` is the status of the old one."""
    parent = os.path.dirname(name) if folder is None else ""
    fresh = os.path.join(parent, f".{secrets.token_hex(12)}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
    # A new file has the permissions that the umask leaves. A replacement is private until it has those of the
    # old file.
    descriptor = _open_at(folder, fresh, flags, 0o666 if old is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            if old is not None:
                _copy_permissions(folder, name, old, descriptor)
            opened.write(data)
            opened.flush()
            os.fsync(descriptor)
        if not _is_still(folder, name, old):
            raise BadPath(f"{given_path!r} was changed by another program just now: nothing was written")
        # A rename replaces whatever has the name. For a new file a hard link is used instead, because that
        # fails if another program has created the file since the check.
        if old is not None or not _linked(folder, fresh, name):
            os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        _unlink(folder, fresh)
        raise BadPath(
            f"{given_path!r} was created by another program just now: nothing was written"
        ) from None
    except BaseException:
        _unlink(folder, fresh)
        raise
    _sync_folder(folder)


def _is_still(folder: int | None, name: str, old: os.stat_result | None) -> bool:
    """Whether the name still leads to the file with this status, and nothing was written to it since."""
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return old is None
    return old is not None and all(
        getattr(now, each) == getattr(old, each)
        for each in ("st_dev", "st_ino", "st_mode", "st_size", "st_mtime_ns", "st_ctime_ns")
    )


def _linked(folder: int | None, fresh: str, name: str) -> bool:
    """Give a new file its final name by a hard link; False if the file system has no hard links.

    Raises `FileExistsError` if the name is taken.
    """
    try:
        os.link(fresh, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):
        return False
    _unlink(folder, fresh)
    return True


def _unlink(folder: int | None, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _copy_permissions(folder: int | None, name: str, old: os.stat_result, descriptor: int) -> None:
    if os.name != "posix":
        return
    new = os.fstat(descriptor)
    mode = stat.S_IMODE(old.st_mode) & 0o777
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except OSError:
            # The new file stays in our group, but the group's permissions were meant for another one.
            mode &= 0o707
    # With an access control list, the group bits of the mode are the list's mask, and without the list they
    # would let in the whole group. So if the list cannot be copied, the group gets nothing.
    access_list = _access_list(folder, name)
    if access_list is None:
        # The new file may have inherited a list from its folder.
        _set_access_list(descriptor, None)
        os.fchmod(descriptor, mode)
    elif not mode & 0o070 or not _set_access_list(descriptor, access_list):
        os.fchmod(descriptor, mode & 0o700)


def _access_list(folder: int | None, name: str) -> bytes | None:
    if not hasattr(os, "getxattr"):
        return None
    try:
        # `getxattr` has no `dir_fd`, so the folder's descriptor is named by its path in /proc.
        return os.getxattr(f"/proc/self/fd/{folder}/{name}", _ACCESS_LIST, follow_symlinks=False)
    except OSError:
        return None


def _set_access_list(descriptor: int, access_list: bytes | None) -> bool:
    """Set the access control list, and with it the mode; None removes the list. False if that fails."""
    try:
        if access_list is not None:
            os.setxattr(descriptor, _ACCESS_LIST, access_list)
        elif hasattr(os, "removexattr"):
            os.removexattr(descriptor, _ACCESS_LIST)
    except OSError:
        return False
    return True


def _sync_folder(folder: int | None) -> None:
    """Synchronise the folder to disk, if the system allows it: the rename then survives a power failure."""
    if folder is None:
        return
    try:
        descriptor = os.open(".", os.O_RDONLY | _NO_LINK, dir_fd=folder)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
