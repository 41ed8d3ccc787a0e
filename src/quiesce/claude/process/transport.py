"""Ways to a CLI: the child process, anything of `quiesce.wire`, and transports that were written for claude-agent-sdk."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from quiesce.claude.types import CLINotFoundError
from quiesce.wire import ChildProcess
from quiesce.wire import Transport as WireTransport

from .command import command_of, environment_of
from .find_cli import find_cli
from .private_arguments import PrivateArguments
from .sdk_transport import SdkTransport
from .stderr_lines import StderrLines

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.claude.types import ClaudeAgentOptions
    from quiesce.wire import Limits
    from quiesce.wire.inner import Link


class Transport(ABC):
    """A way to a CLI of your own, with the methods that claude-agent-sdk asks of one.

    Those of `quiesce.wire` (`memory_pair()`, `connect_tcp(...)`, ...) can be passed as they are.
    """

    @abstractmethod
    async def connect(self) -> None:
        """Connect."""

    @abstractmethod
    async def write(self, data: str) -> None:
        """Send one message: a line, with its end."""

    @abstractmethod
    def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """What comes in, as JSON objects."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect, in bounded time."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it is connected."""

    @abstractmethod
    async def end_input(self) -> None:
        """Nothing more will be sent."""


class CliProcess(ChildProcess):
    """The CLI as a child process."""

    def __init__(self, options: ClaudeAgentOptions, grace: Grace | None) -> None:
        self._lines = StderrLines(options.stderr) if options.stderr is not None else None
        self._cwd = options.cwd
        self._user = options.user
        self._command = command_of(options, find_cli(options))
        self._private: PrivateArguments | None = None
        super().__init__(
            self._command,
            env=environment_of(options),
            cwd=options.cwd,
            user=options.user,
            name="claude",
            on_stderr=self._lines,
            grace=grace,
        )

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Start it."""
        self._private = PrivateArguments(self._command, self._user)
        self._options = (self._private.words, *self._options[1:])
        try:
            return await super().open(limits, scope)
        except BaseException as error:
            self._private.remove()
            if isinstance(error, FileNotFoundError) and self._has_cwd():
                raise CLINotFoundError(f"Claude Code not found: {error}") from error
            raise

    def _has_cwd(self) -> bool:
        return self._cwd is None or os.path.isdir(self._cwd)

    def said_all(self) -> None:
        """It has exited: its last line may have no end."""
        if self._private is not None:
            self._private.remove()
        if self._lines is not None:
            self._lines.finish()


def transport_for(options: ClaudeAgentOptions, given: object, grace: Grace | None) -> WireTransport:
    """The way to the CLI: what was given, or a child process."""
    if isinstance(given, WireTransport):
        return given
    verbs = ("connect", "write", "read_messages", "close", "end_input")
    if all(callable(getattr(given, verb, None)) for verb in verbs):
        return SdkTransport(given)  # type: ignore[arg-type]
    if given is not None:
        raise TypeError(f"transport must be a Transport, not {type(given).__name__}")
    return CliProcess(options, grace)
