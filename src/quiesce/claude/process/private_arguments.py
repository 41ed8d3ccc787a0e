"""Arguments that other users must not read: everyone on a machine can see every command line.

The configuration of MCP servers contains headers and environments, and with them tokens. The CLI also accepts
it from a file, so it gets a file that only its user can read, and that is removed when the CLI has exited. A
program that is killed leaves the file behind, in the user's folder for temporary files.
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
    """A command line without its secrets, and the files with them; call `remove` when the CLI has exited."""

    def __init__(self, words: list[str], user: str | int | None) -> None:
        self.words = list(words)
        self._paths: list[str] = []
        # A finalizer, not a method: it also runs at the exit of a program that never called it.
        self.remove: Callable[[], object] = weakref.finalize(self, _remove_all, self._paths, os.getpid())
        try:
            for place, word in enumerate(self.words):
                # A word that is not JSON is the path of a file of the user's, which stays.
                if (
                    word.lstrip().startswith("{")
                    and _is_configuration(self.words, place)
                    and _has_secrets(word)
                ):
                    self._paths.append(_write(word, user))
                    self.words[place] = self._paths[-1]
        except BaseException:
            # A configuration that was written before the failure must not stay on the disk.
            self.remove()
            raise


def _is_configuration(words: list[str], place: int) -> bool:
    """Return whether the word at this place belongs to the option, which takes several words."""
    flags = [word for word in words[:place] if word.startswith("--")]
    return bool(flags) and flags[-1] == _OPTION


def _has_secrets(configuration: str) -> bool:
    """Return False only if all the servers certainly are in this process, and so have no settings.

    A configuration that cannot be read counts as secret, and the CLI reports what is wrong with it.
    """
    try:
        servers = json.loads(configuration)["mcpServers"].values()
        return any(server.get("type") != "sdk" for server in servers)
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return True


def _write(text: str, user: str | int | None) -> str:
    descriptor, path = tempfile.mkstemp(prefix="quiesce-", suffix=".json")  # its mode is 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if user is not None:
                # The CLI runs as another user, and has to read a file with the mode 0600.
                os.fchown(descriptor, pwd.getpwnam(user).pw_uid if isinstance(user, str) else user, -1)
    except BaseException:
        _remove_all([path], os.getpid())
        raise
    return path


def _remove_all(paths: list[str], process: int) -> None:
    if os.getpid() != process:
        return  # this is a fork; the program that made the files still needs them
    while paths:
        try:
            os.unlink(paths.pop())
        except FileNotFoundError:
            pass
