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
    """A command line without its secrets, and the files that hold them; `remove` them when the program has exited."""

    def __init__(self, words: list[str], user: str | int | None) -> None:
        self.words = list(words)
        self._paths: list[str] = []
        # If the program ends before anybody calls it, it is called then.
        self.remove: Callable[[], object] = weakref.finalize(self, _remove_all, self._paths, os.getpid())
        try:
            for place, word in enumerate(self.words):
                # It also takes a file of the user's, which stays what it is.
                if (
                    word.lstrip().startswith("{")
                    and _is_configuration(self.words, place)
                    and _has_secrets(word)
                ):
                    self._paths.append(_write(word, user))
                    self.words[place] = self._paths[-1]
        except BaseException:
            self.remove()
            raise


def _is_configuration(words: list[str], place: int) -> bool:
    """Whether this word belongs to the option, which takes several."""
    before = [word for word in words[:place] if word.startswith("--")]
    return bool(before) and before[-1] == _OPTION


def _has_secrets(configuration: str) -> bool:
    """Unless it is certain that all its servers are in this process, and have no settings of their own. The CLI says what is wrong with it."""
    try:
        servers = json.loads(configuration)["mcpServers"].values()
        return any(server.get("type") != "sdk" for server in servers)
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return True


def _write(text: str, user: str | int | None) -> str:
    descriptor, path = tempfile.mkstemp(prefix="quiesce-", suffix=".json")  # with 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if user is not None:
                os.fchown(descriptor, pwd.getpwnam(user).pw_uid if isinstance(user, str) else user, -1)
    except BaseException:
        _remove_all([path], os.getpid())
        raise
    return path


def _remove_all(paths: list[str], process: int) -> None:
    if os.getpid() != process:
        return  # in a fork of the program, which still needs them
    while paths:
        try:
            os.unlink(paths.pop())
        except FileNotFoundError:
            pass
