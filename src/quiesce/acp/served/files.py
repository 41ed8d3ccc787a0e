"""The files in a session's directories: the client's if it offers them, else this machine's.

`quiesce._safe.files` decides which files those are, and how they are opened. A client opens its files itself;
the paths that it is sent are checked here as well.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

from quiesce import to_thread
from quiesce._safe.files import BadPath, Folders, OutsideOfFolders, Seen, encoded
from quiesce.acp.exceptions import RESOURCE_NOT_FOUND
from quiesce.wire import RpcError

from .session import Session, client_answer, current_session

# How many bytes a file may have to be read on this machine.
LARGEST: Final = 8 << 20


class OutsideOfSession(PermissionError):
    """A path leads out of the session's directories."""


class NoTextFile(BadPath):
    """A path does not lead to a text file of a size that can be read."""


class ClientRefused(OSError):
    """The client could not do what a tool requested."""


class Files:
    """Reads and writes files for a tool."""

    def __init__(self, session: Session | None) -> None:
        self._session = session
        self.cwd = session.cwd if session is not None else os.getcwd()
        self._folders = session.folders if session is not None else Folders([self.cwd])

    @classmethod
    def here(cls) -> Files:
        """Return the files of the current session; outside of ACP, those in the current directory."""
        return cls(current_session())

    def path(self, path: str) -> str:
        """Return the absolute path; raise `OutsideOfSession` if it leads out of the session's directories."""
        try:
            self._folders.resolve(path)
        except OutsideOfFolders as error:
            raise OutsideOfSession(str(error)) from None
        return os.path.normpath(os.path.join(self.cwd, os.path.expanduser(path)))

    async def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """Return the text of a file, or `limit` lines of it beginning at `line`; the first line is 1."""
        session = self._session
        if session is None or not session.can_read_files:
            text = await to_thread(self._read_here, path, name=f"read {path}")
            return _lines(text, line, limit) if line is not None or limit is not None else text
        try:
            answer = await client_answer(session.client.read_text_file(session.id, path, line, limit))
        except RpcError as error:
            if error.code == RESOURCE_NOT_FOUND:
                raise FileNotFoundError(f"there is no file {path!r}") from error
            raise _refused(f"read {path!r}", error) from error
        return answer.content

    async def look(self, path: str) -> tuple[str | None, Seen]:
        """Return the text of a file (None if there is none), and what must be unchanged when it is written.

        Raises `OSError` for an existing file that cannot be shown, because then a change to it cannot be
        approved.
        """
        if not self._client_writes:
            seen, before = await to_thread(self._folders.look, path, name=f"look at {path}")
            return (_decoded(before, path) if before is not None else None), seen
        try:
            text = await self.read(path)
        except FileNotFoundError:
            return None, Seen(self._folders.resolve(path))
        except ClientRefused:
            # Clients differ in how they report a file that does not exist. Most of them run on this machine,
            # so look here.
            if await to_thread(os.path.lexists, path):
                raise
            return None, Seen(self._folders.resolve(path))
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return text, Seen(self._folders.resolve(path), digest)

    async def write(self, path: str, text: str, seen: Seen) -> None:
        """Make `text` the content of a file, new or not, if it is still the file that was `seen`."""
        session = self._session
        if session is None or not session.can_write_files:
            await to_thread(self._folders.write, path, encoded(path, text), seen, name=f"write {path}")
            return
        if self._folders.resolve(path) != seen.path:
            raise BadPath(f"{path!r} has become a link meanwhile: nothing was written")
        try:
            await client_answer(session.client.write_text_file(session.id, path, text))
        except RpcError as error:
            raise _refused(f"write {path!r}", error) from error

    @property
    def _client_writes(self) -> bool:
        return self._session is not None and self._session.can_write_files

    def _read_here(self, path: str) -> str:
        with self._folders.open(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST:
                raise NoTextFile(
                    f"{path!r} has {size} bytes, and at most {LARGEST} can be read: look at parts of it with a command"
                )
            return _decoded(file.read(LARGEST), path)


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NoTextFile(f"{path!r} is not UTF-8 text") from None


def _refused(what: str, error: RpcError) -> ClientRefused:
    details = error.data.get("details") if isinstance(error.data, dict) else error.data
    return ClientRefused(f"the client could not {what}: {error.message}{f' ({details})' if details else ''}")


def lines_of(text: str) -> list[str]:
    """Return the lines of a text as editors and clients count them, each with its line end."""
    # Not `splitlines`, which also splits at other characters, such as a form feed.
    return [line + "\n" for line in text.split("\n")[:-1]] + (
        [last] if (last := text.rpartition("\n")[2]) else []
    )


def _lines(text: str, line: int | None, limit: int | None) -> str:
    lines = lines_of(text)
    first = max((line or 1) - 1, 0)
    return "".join(lines[first : None if limit is None else first + limit])
