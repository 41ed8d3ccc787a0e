"""What a client may request of a served agent: where it works, which commands it runs, when it asks.

A client over stdin and stdout has started us, and one on a socket in the file system is the same user: both
could do all of that anyway. A client from the network has only presented a token. It could be a web page, a
tunnel or another machine, so it is confined to one folder and has to ask, unless more is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from quiesce._safe.files import Folders
from quiesce.acp import schema as s
from quiesce.acp.exceptions import RequestError

if TYPE_CHECKING:
    from quiesce.wire.inner import Client


@dataclass(frozen=True)
class Place:
    """Where a session works, and with which MCP servers: the client's parameters when it opens one."""

    cwd: str
    directories: list[str] | None
    mcp_servers: list[Any] | None

    @cached_property
    def folders(self) -> Folders:
        """The session's folders, resolved once, so that the same folders are checked and used."""
        return Folders([self.cwd, *(self.directories or ())])

    def check(self) -> None:
        """Raise `RequestError` for a path that is not absolute."""
        for path in (self.cwd, *(self.directories or ())):
            if not os.path.isabs(path) or "\0" in path:
                raise RequestError.invalid_params({"cwd": f"{path!r} is not an absolute path"})


class Rules:
    """The limits for a client; a value of `None` is replaced by `for_client`."""

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]] | None,
        allow_commands: bool | None,
        allow_auto: bool | None,
    ) -> None:
        if folders is not None and (isinstance(folders, (str, os.PathLike)) or not folders):
            raise TypeError(f"folders must be a list of folders, at least one, not {folders!r}")
        self._folder_names = folders
        self._folders = Folders(folders) if folders is not None else None
        self.allow_commands = allow_commands
        self.allow_auto = allow_auto

    def for_client(self, client: Client | None) -> Rules:
        """Return the rules for one client: where a value is None, who the client is decides."""
        is_local = client is None or client.is_owner
        return Rules(
            self._folder_names if self._folder_names is not None or is_local else [os.getcwd()],
            is_local if self.allow_commands is None else self.allow_commands,
            is_local if self.allow_auto is None else self.allow_auto,
        )

    def check(self, place: Place) -> None:
        """Raise `RequestError` if the client may not have a session there."""
        for path, canonical in zip((place.cwd, *(place.directories or ())), place.folders.roots, strict=True):
            # The resolved path decides, so that a link cannot lead out of the allowed folders.
            if self._folders is not None and not self._folders.has(canonical):
                allowed = ", ".join(map(str, self._folder_names or ()))
                raise RequestError.invalid_params(
                    {"cwd": f"{path!r} is not in {allowed}: sessions can only work in there"}
                )
        if not self.allow_commands and any(
            isinstance(server, s.McpServerStdio) for server in place.mcp_servers or ()
        ):
            raise RequestError.invalid_params(
                {
                    "mcpServers": "clients from the network may not name MCP servers that are started by a command"
                }
            )

    def allow(self, folders: Sequence[str]) -> bool:
        """Whether the client may see a stored session that worked in these folders."""
        return self._folders is None or all(self._folders.has(os.path.realpath(path)) for path in folders)
