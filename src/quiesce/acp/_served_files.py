"""The files of a session: the client's, if it offers them, else this machine's; and only those in the session's directories.

Invariants
- A path is judged by where it leads: links are followed before it is asked whether it is inside. `..` is resolved in the text of the path, as
  editors do, and what was judged is what is used.
- What is read here is a plain file of bounded size. The last step of a path is not followed again when the file is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import IO, Final

from quiesce.kernel._thread import to_thread
from quiesce.wire._errors import RpcError

from ._served_session import Session, client_says, current_session
from .exceptions import RESOURCE_NOT_FOUND

LARGEST: Final = 8 << 20  # bytes of a file that is read here


class OutsideOfSession(PermissionError):
    """A path leads out of the directories that the session works in."""


class NoTextFile(OSError):
    """What a path leads to is no text file of a size that can be read."""


class ClientRefused(OSError):
    """The client could not do what a tool asked of it."""


class Files:
    """Reads and writes for a tool."""

    def __init__(self, session: Session | None) -> None:
        self._session = session
        self.cwd = session.cwd if session is not None else os.getcwd()
        self._roots: Sequence[str] = (
            (session.cwd, *session.additional_directories) if session is not None else (self.cwd,)
        )

    @classmethod
    def here(cls) -> Files:
        """Those of the session at hand; outside of ACP, those in the current directory."""
        return cls(current_session())

    def path(self, given: str) -> str:
        """The absolute path; `OutsideOfSession` if it leads out of the session's directories."""
        path = os.path.normpath(os.path.join(self.cwd, given))
        self._real(path, given)
        return path

    def _real(self, path: str, given: str) -> str:
        real = os.path.realpath(path)
        for root in self._roots:
            inside = os.path.realpath(root)
            if real == inside or real.startswith(inside.rstrip(os.sep) + os.sep):
                return real
        raise OutsideOfSession(
            f"{given!r} is outside of the directories of this session ({', '.join(self._roots)}): use a path inside of them"
        )

    async def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text of a file, or `limit` lines of it from `line` on, of which 1 is the first."""
        session = self._session
        if session is None or not session.can_read_files:
            text = await to_thread(_read, self._real(path, path), path, name=f"read {path}")
            return _lines(text, line, limit) if line is not None or limit is not None else text
        try:
            answer = await client_says(session.client.read_text_file(session.id, path, line, limit))
        except RpcError as error:
            if error.code == RESOURCE_NOT_FOUND:
                raise FileNotFoundError(f"there is no file {path!r}") from error
            raise _refused(f"read {path!r}", error) from error
        return answer.content

    async def read_if_there(self, path: str) -> str | None:
        """The text of a file; None if it cannot be read, which mostly means that there is none."""
        try:
            return await self.read(path)
        except (FileNotFoundError, ClientRefused, NoTextFile):
            return None

    async def write(self, path: str, text: str) -> None:
        """Make this the text of a file, new or not."""
        session = self._session
        if session is None or not session.can_write_files:
            await to_thread(_write, self._real(path, path), path, text, name=f"write {path}")
            return
        try:
            await client_says(session.client.write_text_file(session.id, path, text))
        except RpcError as error:
            raise _refused(f"write {path!r}", error) from error


def _refused(what: str, error: RpcError) -> ClientRefused:
    details = error.data.get("details") if isinstance(error.data, dict) else error.data
    return ClientRefused(f"the client could not {what}: {error.message}{f' ({details})' if details else ''}")


def lines_of(text: str) -> list[str]:
    """Lines as editors and clients count them, each with its end. `splitlines` knows more ends than they do: a form feed, for one."""
    return [line + "\n" for line in text.split("\n")[:-1]] + (
        [last] if (last := text.rpartition("\n")[2]) else []
    )


def _lines(text: str, line: int | None, limit: int | None) -> str:
    lines = lines_of(text)
    first = max((line or 1) - 1, 0)
    return "".join(lines[first : None if limit is None else first + limit])


# On this machine, in a thread


def _read(real: str, shown: str) -> str:
    with _opened(real, shown, os.O_RDONLY, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST:
            raise NoTextFile(
                f"{shown!r} has {size} bytes, and no more than {LARGEST} are read: look at parts of it with a command"
            )
        data = file.read(LARGEST)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NoTextFile(f"{shown!r} is not text in UTF-8") from None


def _write(real: str, shown: str, text: str) -> None:
    os.makedirs(os.path.dirname(real), exist_ok=True)
    with _opened(real, shown, os.O_WRONLY | os.O_CREAT, "wb") as file:
        file.truncate()
        file.write(text.encode())


def _opened(real: str, shown: str, flags: int, mode: str) -> IO[bytes]:
    # Whoever opens a pipe waits for its other end; with O_NONBLOCK nobody does, and it can be looked at.
    try:
        fd = os.open(real, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {shown!r}") from None
    except IsADirectoryError:
        raise NoTextFile(f"{shown!r} is no plain file") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NoTextFile(f"{shown!r} is no plain file")
    return os.fdopen(fd, mode)
