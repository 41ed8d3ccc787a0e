"""What goes wrong between a program and its Claude Code CLI, by the names that users of claude-agent-sdk catch.

Each survives `pickle` and `copy` with its attributes: it can be made from its message alone, or says how to make it again.
"""

from __future__ import annotations

from typing import Any


class ClaudeSDKError(Exception):
    """Any error of this package."""


class CLIConnectionError(ClaudeSDKError):
    """The CLI could not be started, or is not there to talk to any more."""


class CLINotFoundError(CLIConnectionError):
    """There is no CLI to start."""

    def __init__(self, message: str = "Claude Code not found", cli_path: str | None = None) -> None:
        super().__init__(f"{message}: {cli_path}" if cli_path else message)


class ProcessError(ClaudeSDKError):
    """The CLI ended with a failure; `stderr` holds the last of what it complained about."""

    def __init__(self, message: str, exit_code: int | None = None, stderr: str | None = None) -> None:
        self.exit_code = exit_code
        self.stderr = stderr
        if exit_code is not None:
            message += f" (exit code: {exit_code})"
        if stderr:
            message += f"\nError output: {stderr}"
        super().__init__(message)


class ResultError(ProcessError):
    """The CLI reported a result that is an error, which you were given as a `ResultMessage`, and ended with a failure.

    `data` is that result as it came; `subtype`, `errors`, `result`, `api_error_status`, `terminal_reason` and `session_id` are what it said
    of them, or None (`errors`: an empty list).
    """

    def __init__(
        self, message: str, data: dict[str, Any] | None = None, exit_code: int | None = None
    ) -> None:
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        self.subtype: str | None = self._said("subtype", str)
        self.errors: list[str] = result_errors(self.data)
        self.result: str | None = self._said("result", str)
        self.api_error_status: int | None = self._said("api_error_status", int)
        self.terminal_reason: str | None = self._said("terminal_reason", str)
        self.session_id: str | None = self._said("session_id", str)
        super().__init__(message, exit_code=exit_code)

    def _said(self, name: str, kind: type) -> Any:
        value = self.data.get(name)
        return value if isinstance(value, kind) else None


class CLIJSONDecodeError(ClaudeSDKError):
    """The CLI wrote a line that begins as JSON and is none, or is too long; `stderr` holds the last of what it complained about."""

    stderr: str | None = None  # set afterwards: the SDK's cannot be made with one

    def __init__(self, line: str, original_error: Exception) -> None:
        self.line = line
        self.original_error = original_error
        super().__init__(f"Failed to decode JSON: {line[:100]}{'...' if len(line) > 100 else ''}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.line, self.original_error), vars(self)

    def __str__(self) -> str:
        return super().__str__() + (f"\nError output: {self.stderr}" if self.stderr else "")


class MessageParseError(ClaudeSDKError):
    """The CLI sent a message of a known kind without what that kind must have; `data` is the message."""

    def __init__(self, message: str, data: dict[str, Any] | None = None) -> None:
        self.data = data
        super().__init__(message)


def result_errors(data: dict[str, Any]) -> list[str]:
    """The texts under `errors` of a result: a list, or one text alone; blanks and whatever is no text are left out."""
    errors = data.get("errors")
    if isinstance(errors, str):
        errors = [errors]
    if not isinstance(errors, list):
        return []
    return [text for error in errors if isinstance(error, str) and (text := error.strip())]


def result_text(data: dict[str, Any]) -> str:
    """What a result with `is_error` says went wrong, in as many words as it has."""
    if errors := result_errors(data):
        return "; ".join(errors)
    result, subtype, status = data.get("result"), data.get("subtype"), data.get("api_error_status")
    if isinstance(result, str) and result.strip():
        return result.strip()
    if isinstance(subtype, str) and subtype not in (
        "",
        "success",
    ):  # a turn may succeed, and its API call not
        return subtype
    return f"API error (HTTP {status})" if isinstance(status, int) else "unknown error"
