"""Errors between a program and its Claude Code CLI, with the names of claude-agent-sdk.

Each keeps its attributes through `pickle` and `copy`: it can be made from its message alone, or has a
`__reduce__`.
"""

from __future__ import annotations

from typing import Any


class ClaudeSDKError(Exception):
    """Any error of this package."""


class CLIConnectionError(ClaudeSDKError):
    """The CLI could not be started, or the connection to it has ended."""


class CLINotFoundError(CLIConnectionError):
    """No CLI was found to start."""

    def __init__(self, message: str = "Claude Code not found", cli_path: str | None = None) -> None:
        super().__init__(f"{message}: {cli_path}" if cli_path else message)


class ProcessError(ClaudeSDKError):
    """The CLI exited with an error; `stderr` has the last part of its standard error."""

    def __init__(self, message: str, exit_code: int | None = None, stderr: str | None = None) -> None:
        self.exit_code = exit_code
        self.stderr = stderr
        if exit_code is not None:
            message += f" (exit code: {exit_code})"
        if stderr:
            message += f"\nError output: {stderr}"
        super().__init__(message)


class ResultError(ProcessError):
    """The CLI reported an error result, which you got as a `ResultMessage`, and exited with an error.

    `data` is the whole result; `subtype`, `errors`, `result`, `api_error_status`, `terminal_reason` and
    `session_id` are fields of it, or None (`errors`: an empty list).
    """

    def __init__(
        self, message: str, data: dict[str, Any] | None = None, exit_code: int | None = None
    ) -> None:
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        self.subtype: str | None = self._field("subtype", str)
        self.errors: list[str] = result_errors(self.data)
        self.result: str | None = self._field("result", str)
        self.api_error_status: int | None = self._field("api_error_status", int)
        self.terminal_reason: str | None = self._field("terminal_reason", str)
        self.session_id: str | None = self._field("session_id", str)
        super().__init__(message, exit_code=exit_code)

    def _field(self, name: str, kind: type) -> Any:
        value = self.data.get(name)
        return value if isinstance(value, kind) else None


class CLIJSONDecodeError(ClaudeSDKError):
    """The CLI wrote a line that is not JSON, or too long; `stderr` has the last of its standard error."""

    stderr: str | None = None  # set afterwards: the SDK's class has no such parameter

    def __init__(self, line: str, original_error: Exception) -> None:
        self.line = line
        self.original_error = original_error
        super().__init__(f"Failed to decode JSON: {line[:100]}{'...' if len(line) > 100 else ''}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.line, self.original_error), vars(self)

    def __str__(self) -> str:
        return super().__str__() + (f"\nError output: {self.stderr}" if self.stderr else "")


class MessageParseError(ClaudeSDKError):
    """The CLI sent a message of a known kind that lacks a required field; `data` is the message."""

    def __init__(self, message: str, data: dict[str, Any] | None = None) -> None:
        self.data = data
        super().__init__(message)


def result_errors(data: dict[str, Any]) -> list[str]:
    """Return the texts under `errors` of a result (a list, or one text) without the blank ones."""
    errors = data.get("errors")
    if isinstance(errors, str):
        errors = [errors]
    if not isinstance(errors, list):
        return []
    return [text for error in errors if isinstance(error, str) and (text := error.strip())]


def result_text(data: dict[str, Any]) -> str:
    """Return the most specific text that an error result has about what went wrong."""
    if errors := result_errors(data):
        return "; ".join(errors)
    result, subtype, status = data.get("result"), data.get("subtype"), data.get("api_error_status")
    if isinstance(result, str) and result.strip():
        return result.strip()
    # A turn can end with the subtype "success" although its API call failed.
    if isinstance(subtype, str) and subtype not in ("", "success"):
        return subtype
    return f"API error (HTTP {status})" if isinstance(status, int) else "unknown error"
