"""Choosing the transport to a CLI, and the usual one: a child process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from quiesce.claude.words import CLINotFoundError
from quiesce.wire import ChildProcess
from quiesce.wire import Transport as WireTransport

from .command import command_of, environment_of
from .find_cli import find_cli
from .private_arguments import PrivateArguments
from .sdk_transport import SdkTransport
from .stderr_lines import StderrLines

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.claude.words import ClaudeAgentOptions
    from quiesce.wire import Limits
    from quiesce.wire.inner import Link


class CliProcess(ChildProcess):
    """The CLI as a child process."""

    def __init__(self, options: ClaudeAgentOptions, grace: Grace | None) -> None:
        self._lines = StderrLines(options.stderr) if options.stderr is not None else None
        self._cwd = options.cwd
        self._user = options.user
        self._command = command_of(options, find_cli(options))
        self._private: PrivateArguments | None = None  # written only when the CLI is started
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
        """Start the CLI."""
        # Only now: the files with secrets should exist no longer than the process that reads them.
        self._private = PrivateArguments(self._command, self._user)
        self._options = (self._private.words, *self._options[1:])
        try:
            return await super().open(limits, scope)
        except BaseException as error:
            self._private.remove()
            # A missing `cwd` raises the same error, and the CLI may well be there.
            if isinstance(error, FileNotFoundError) and self._has_cwd():
                raise CLINotFoundError(f"Claude Code not found: {error}") from error
            raise

    def _has_cwd(self) -> bool:
        return self._cwd is None or os.path.isdir(self._cwd)

    def finish(self) -> None:
        """Remove private files and pass on the last line of stderr, once the CLI has exited."""
        if self._private is not None:
            self._private.remove()
        if self._lines is not None:
            self._lines.finish()


def transport_for(options: ClaudeAgentOptions, given: object, grace: Grace | None) -> WireTransport:
    """Return the transport to the CLI: the given one, or a child process."""
    if isinstance(given, WireTransport):
        return given
    # By its methods: one that was written for claude-agent-sdk derives from that package's class, not from
    # ours.
    verbs = ("connect", "write", "read_messages", "close", "end_input")
    if all(callable(getattr(given, verb, None)) for verb in verbs):
        return SdkTransport(given)  # type: ignore[arg-type]
    if given is not None:
        raise TypeError(f"transport must be a Transport, not {type(given).__name__}")
    return CliProcess(options, grace)
