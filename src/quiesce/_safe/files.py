"""Files below some folders, opened in a way that cannot be redirected.

A model names a path, a person approves it, and a while later the file is opened. A program, another user or a repository
full of links may change the folder in between, and must not be able to make that open reach another file.

Invariants
- A path is resolved once, links included, to a canonical path that must lie in one of the folders. That path is then walked from the root of the file
  system with a descriptor for each step, and no step follows a link. A link that appears in between is an error, never a way out.
- What is written is what was approved: the same canonical path, with the same bytes in it (`Seen`).
- A write is a new file with a random name, made with `O_EXCL` and with its final permissions, synchronised to disk and renamed. A reader sees the old
  content or the new one, and a private file never has wider permissions, not even for a moment.
- Only plain files are touched, and no file that has another name (a hard link) outside of the folders.

Everything here blocks, so call it from a thread. What takes long calls `check` now and then, which may raise to stop it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

LARGEST: Final = 64 << 20  # bytes of a file that is compared or replaced
_HAS_DESCRIPTORS: Final = os.open in os.supports_dir_fd
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Opening a named pipe waits for its other end; with O_NONBLOCK it returns, and the pipe can be refused.
_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | _NO_LINK
# O_PATH needs no permission to list the folder, only to pass through it, as a path does.
_STEP: Final = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | _NO_LINK
_LINKS: Final = (errno.ELOOP, errno.ENOTDIR)
_ACCESS_LIST: Final = "system.posix_acl_access"
_MOST_ENTRIES: Final = 200_000  # looked at to find the other names of a file


class BadPath(OSError):
    """A path that the file tools do not touch. The message says why."""


class OutsideOfFolders(BadPath):
    """A path leads out of the folders."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was when it was looked at: its canonical path, and a digest of its bytes, or None if there was no file."""

    path: str
    digest: bytes | None = None


class Folders:
    """The files below some folders. Relative paths start at the first folder.

    ```python
    folders = Folders(["/srv/project"])
    seen, before = folders.look("README.md")
    folders.write("README.md", b"...", seen)    # BadPath if it is no longer the same file
    ```
    """

    def __init__(self, roots: Sequence[str | os.PathLike[str]]) -> None:
        self._given = [os.path.abspath(root) for root in roots]
        self._roots = [os.path.realpath(root) for root in self._given]

    @property
    def home(self) -> str:
        """The first folder, where relative paths start."""
        return self._roots[0]

    def resolve(self, path: str) -> str:
        """The canonical path of a file or folder, which need not exist; `BadPath` if it lies elsewhere."""
        try:
            # `..` is resolved in the text of the path, as editors do, and not after following a link.
            found = os.path.realpath(os.path.normpath(os.path.join(self._given[0], os.path.expanduser(path))))
        except (OSError, ValueError, RuntimeError) as error:
            raise BadPath(f"{path!r} is not a valid path: {error}") from error
        if not any(_is_below(found, root) for root in self._roots):
            where = self._given[0] if len(self._given) == 1 else f"one of {', '.join(self._given)}"
            raise OutsideOfFolders(f"{path!r} is not in {where}: the file tools work in there only")
        return found

    def relative(self, canonical: str) -> str:
        """A canonical path as it is called inside the first folder; as it is if it lies in another one."""
        return os.path.relpath(canonical, self.home) if _is_below(canonical, self.home) else canonical

    # Looking

    def open(self, path: str, check: Callable[[], object] | None = None) -> BinaryIO:
        """Open a plain file for reading; close it when you are done."""
        with self._parent(path, self.resolve(path)) as (folder, name):
            return self._open(folder, name, path, check)

    def look(self, path: str, check: Callable[[], object] | None = None) -> tuple[Seen, bytes | None]:
        """The file as it is now, and its bytes; None if there is no file. A file that cannot be read is a `BadPath`."""
        canonical = self.resolve(path)
        try:
            with self._parent(path, canonical) as (folder, name):
                seen, data, _ = self._look(folder, name, path, canonical, check)
        except FileNotFoundError:
            return Seen(canonical), None
        return seen, data

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; those of folders end with a slash."""
        canonical = self.resolve(path)
        with self._parent(path, canonical) as (folder, name):
            try:
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

    def write(
        self, path: str, data: bytes, seen: Seen | None = None, check: Callable[[], object] | None = None
    ) -> bool:
        """Put `data` into a file, all of it or nothing; whether the file existed.

        With `seen`, the file must be the one that `look` saw, with the same bytes.
        """
        canonical = self.resolve(path)
        if seen is not None and seen.path != canonical:
            raise BadPath(
                f"{path!r} was {seen.path!r} when it was approved, and now is {canonical!r}: nothing was written"
            )
        with self._parent(path, canonical, make=True) as (folder, name):
            now, _, status = self._look(folder, name, path, canonical, check)
            if seen is not None and seen != now:
                raise BadPath(f"{path!r} has changed since it was approved: nothing was written")
            _replace(folder, name, data, status)
            return status is not None

    # Opened step by step

    @contextmanager
    def _parent(self, given: str, canonical: str, *, make: bool = False) -> Iterator[tuple[int | None, str]]:
        """A descriptor of the folder that a file is in, and the file's name in it."""
        if not _HAS_DESCRIPTORS:  # the system has no way to open relative to a folder
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
                    raise FileNotFoundError(errno.ENOENT, f"there is no file {given!r}") from None
                except OSError as error:
                    if error.errno in _LINKS:
                        raise BadPath(f"{part!r}, on the way to {given!r}, is not a folder") from error
                    raise BadPath(f"{given!r} cannot be reached: {part!r}: {error.strerror}") from error
                os.close(at)
                at = below
            yield at, name or "."
        finally:
            os.close(at)

    def _open(
        self, folder: int | None, name: str, given: str, check: Callable[[], object] | None
    ) -> BinaryIO:
        try:
            descriptor = _open_at(folder, name, _READ)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, f"there is no file {given!r}") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise BadPath(f"{given!r} became a link while it was opened") from error
            raise BadPath(f"{given!r} cannot be read: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise BadPath(f"{given!r} is a folder")
            if not stat.S_ISREG(status.st_mode):
                raise BadPath(f"{given!r} is not a plain file")
            if status.st_nlink > 1 and self._names_inside(status, check) < status.st_nlink:
                raise BadPath(
                    f"{given!r} has another name outside of the folder (a hard link), so the file tools do not touch it"
                )
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def _look(
        self, folder: int | None, name: str, given: str, canonical: str, check: Callable[[], object] | None
    ) -> tuple[Seen, bytes | None, os.stat_result | None]:
        try:
            opened = self._open(folder, name, given, check)
        except FileNotFoundError:
            return Seen(canonical), None, None
        with opened:
            status = os.fstat(opened.fileno())
            data = opened.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise BadPath(f"{given!r} has more than {LARGEST} bytes, too many to be compared and replaced")
        return Seen(canonical, hashlib.sha256(data).digest()), data, status

    def _names_inside(self, status: os.stat_result, check: Callable[[], object] | None) -> int:
        """How many names of a file are in the folders; fewer if there are too many entries to look at."""
        found, looked_at = set[str](), 0
        for root in self._roots:
            for here, _, names in os.walk(root):
                if check is not None:
                    check()
                for name in names:
                    looked_at += 1
                    full = os.path.join(here, name)
                    try:
                        other = os.lstat(full)
                    except OSError:
                        continue
                    if (other.st_dev, other.st_ino) == (status.st_dev, status.st_ino):
                        found.add(full)
                if len(found) >= status.st_nlink or looked_at > _MOST_ENTRIES:
                    return len(found)
        return len(found)


def encoded(path: str, text: str) -> bytes:
    """The bytes of a text for a file; `BadPath` if UTF-8 has none for it."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadPath(f"the text for {path!r} cannot be written as UTF-8: {error}") from None


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
    except FileExistsError:  # made by somebody else just now
        pass
    return os.open(part, _STEP, dir_fd=at)


def _replace(folder: int | None, name: str, data: bytes, old: os.stat_result | None) -> None:
    """Write a new file beside the old one, and rename it. `old` is the file that it replaces, as it was looked at."""
    parent = os.path.dirname(name) if folder is None else ""
    fresh = os.path.join(parent, f".{secrets.token_hex(12)}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
    # A new file has the permissions that the umask leaves. One that replaces another is private until it has the other's.
    descriptor = _open_at(folder, fresh, flags, 0o666 if old is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            if old is not None:
                _copy_permissions(old, descriptor)
                _copy_access_list(folder, name, descriptor)
            opened.write(data)
            opened.flush()
            os.fsync(descriptor)
        os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        try:
            os.unlink(fresh, dir_fd=folder)
        except FileNotFoundError:
            pass
        raise
    _sync_folder(folder)


def _copy_permissions(old: os.stat_result, descriptor: int) -> None:
    if os.name != "posix":
        return
    new = os.fstat(descriptor)
    mode = stat.S_IMODE(old.st_mode) & 0o777
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except PermissionError:  # the group's permissions were meant for another group
            mode &= 0o707
    os.fchmod(descriptor, mode)


def _copy_access_list(folder: int | None, name: str, descriptor: int) -> None:
    """With an access control list, the group bits of the mode are the list's mask: without the list they would let in the whole group."""
    if not hasattr(os, "getxattr"):
        return
    try:
        listed = os.getxattr(f"/proc/self/fd/{folder}/{name}", _ACCESS_LIST, follow_symlinks=False)
    except OSError:  # it has none
        return
    try:
        os.setxattr(descriptor, _ACCESS_LIST, listed)
    except OSError:
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o700)


def _sync_folder(folder: int | None) -> None:
    """So that the rename outlasts a loss of power; where that is not allowed, it does not."""
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
