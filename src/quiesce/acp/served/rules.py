"""What a client may ask of a served agent: where to work, which commands to run, and whether to be asked.

A client over stdin and stdout has started us, and one on a socket in the file system is the same user: they may do
all of that anyway. A client that comes over the network has shown a token, and no more: it could be a page, a tunnel
or another machine, so it gets a folder and questions unless more is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quiesce._safe.files import Folders
from quiesce.acp import schema as s
from quiesce.acp.exceptions import RequestError

if TYPE_CHECKING:
    from quiesce.wire.inner import Client

    from .records import Record
    from .sessions import Place


class Rules:
    """`None` is decided by who the client is."""

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]] | None,
        allow_commands: bool | None,
        allow_auto: bool | None,
    ) -> None:
        if folders is not None and (isinstance(folders, (str, os.PathLike)) or not folders):
            raise TypeError(f"folders must be a list of folders, at least one, not {folders!r}")
        self._given = folders
        self._folders = Folders(folders) if folders is not None else None
        self.allow_commands = allow_commands
        self.allow_auto = allow_auto

    def for_client(self, client: Client | None) -> Rules:
        """The rules for one client."""
        is_near = client is None or client.is_owner
        return Rules(
            self._given if self._given is not None or is_near else [os.getcwd()],
            is_near if self.allow_commands is None else self.allow_commands,
            is_near if self.allow_auto is None else self.allow_auto,
        )

    def check(self, place: Place) -> None:
        """An error for what the client may not ask."""
        for given, canonical in zip(
            (place.cwd, *(place.directories or ())), place.folders.roots, strict=True
        ):
            if self._folders is not None and not self._folders.has(canonical):
                raise RequestError.invalid_params(
                    {
                        "cwd": f"{given!r} is not in {', '.join(map(str, self._given or ()))}: sessions work in there only"
                    }
                )
        if not self.allow_commands and any(
            isinstance(one, s.McpServerStdio) for one in place.mcp_servers or ()
        ):
            raise RequestError.invalid_params(
                {
                    "mcpServers": "MCP servers that are started by a command are not allowed for clients over the network"
                }
            )

    def knows(self, record: Record) -> bool:
        """Whether a stored session is the client's business: it was in the folders that the client may use."""
        return self._folders is None or all(
            self._folders.has(os.path.realpath(path)) for path in (record.cwd, *record.additional_directories)
        )
