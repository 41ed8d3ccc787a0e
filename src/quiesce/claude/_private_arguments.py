"""Arguments that others must not read: everybody on a machine can see the command line of every process.

The configuration of MCP servers holds their headers and environments, and with them tokens. The CLI also takes it from a file, so it gets a file that only
its user can read, and that is removed when the CLI has exited. A program that is killed leaves the file, in the user's own folder for temporary files.
"""

from __future__ import annotations

import json
import os
import pwd
import tempfile
import weakref
from collections.abc import Callable
from typing import Final

_OPTION: Final = "--mcp-config"


class PrivateArguments:
    """A command line without its secrets, and the file that holds them; `remove` it when the program has exited."""

    def __init__(self, words: list[str], user: str | int | None) -> None:
        self.words = list(words)
        self.remove: Callable[[], object] = _nothing_to_remove
        place = self.words.index(_OPTION) + 1 if _OPTION in self.words else None
        if place is None or not _has_secrets(self.words[place]):
            return
        path = _write(self.words[place], user)
        # If the program ends before anybody calls it, it is called then.
        self.remove = weakref.finalize(self, _remove, path)
        self.words[place] = path


def _nothing_to_remove() -> None:
    pass


def _has_secrets(configuration: str) -> bool:
    """Whether it names servers that are not in this process; those have no settings of their own."""
    if not configuration.startswith("{"):
        return False  # a file of the user's
    servers = json.loads(configuration)["mcpServers"].values()
    return any(not isinstance(server, dict) or server.get("type") != "sdk" for server in servers)


def _write(text: str, user: str | int | None) -> str:
    descriptor, path = tempfile.mkstemp(prefix="quiesce-", suffix=".json")  # with 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if user is not None:
                os.fchown(descriptor, pwd.getpwnam(user).pw_uid if isinstance(user, str) else user, -1)
    except BaseException:
        _remove(path)
        raise
    return path


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
