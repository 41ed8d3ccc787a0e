"""Calls that an MCP server runs as tasks (protocol 2025-11-25): they do not end with the request that made them.

So each is `remote` work. A stop sends `tasks/cancel`, and asks for the task until the server says that it has ended.

Version 1 of the official client names the messages, version 2 knows only their types and takes the answer that
creates a task for a broken one; so both are asked below their typed surface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

import anyio

from quiesce import remote

from .dialect import field

_ENDED: Final = ("completed", "failed", "cancelled")
_PAUSE, _LONGEST_PAUSE = 0.5, 5.0  # seconds between two questions, unless the server suggests others
_FAILURES_IN_A_ROW = 3  # of questions: then the call fails


def runs_as_task(session: Any, tool: Any) -> bool:
    """Whether a tool is to be called as a task: it must be, or it may be and the server can cancel it."""
    support = field(getattr(tool, "execution", None), "taskSupport", "task_support")
    if support not in ("required", "optional"):
        return False
    offered = _capabilities(session)
    return _has(offered, "requests", "tools", "call") and (support == "required" or _has(offered, "cancel"))


async def call_as_task(
    session: Any,
    server: str,
    tool: str,
    arguments: Mapping[str, Any],
    progress: Callable[[str], None] | None,
    has_exited: Callable[[], bool],
) -> Any:
    """Call the tool, and wait for its result. A stop has been confirmed by the server when this raises.

    `has_exited()` tells whether the server was a process of ours, and has ended, and its tasks with it.
    """
    task = _Task(partial(_request, session), tool, arguments, progress, has_exited)
    async with remote(
        task.start, task.cancel, task.confirm, name=f"task of {tool!r} at MCP server {server!r}"
    ) as work:
        if task.answer is not None:  # the server has answered instead of making a task
            work.done()
            return task.answer
        return await task.result(await work.wait())


class _Task:
    """What is known of one task."""

    def __init__(
        self,
        request: Callable[..., Any],
        tool: str,
        arguments: Mapping[str, Any],
        progress: Callable[[str], None] | None,
        has_exited: Callable[[], bool],
    ) -> None:
        self.answer: Any = None
        self._request = request
        self._call = {"name": tool, "arguments": dict(arguments), "task": {}}
        self._progress = progress
        self._has_exited = has_exited
        self._failure: Exception | None = None
        self._is_cancelled = False
        self._early_result: dict[str, Any] | None = None
        self._status = self._told = ""
        self._pause = _PAUSE

    async def start(self) -> str:
        said = await self._request("tools/call", self._call)
        if not isinstance(said.get("task"), Mapping):
            self.answer = _result(said)
            return ""
        self._note(said["task"])
        return str(said["task"]["taskId"])

    async def cancel(self, task_id: str) -> None:
        """Cancel it, unless it has ended: then the server refuses, and `confirm` finds out."""
        self._is_cancelled = True
        try:
            await self._ask("tasks/cancel", task_id)
        except Exception:
            await self._ask("tasks/get", task_id)
            if self._status not in _ENDED:
                raise

    async def confirm(self, task_id: str) -> str:
        """Wait until it has ended."""
        failures = 0
        while self._status not in _ENDED:
            if self._status == "input_required" and not self._is_cancelled and self._early_result is None:
                # It is asked for here, as answers to the request for its result.
                self._early_result = await self._request("tasks/result", {"taskId": task_id})
            else:
                await anyio.sleep(self._pause)
            try:
                await self._ask("tasks/get", task_id)
                failures = 0
            except Exception:
                failures += 1
                if failures == _FAILURES_IN_A_ROW:
                    raise
        return task_id

    async def result(self, task_id: str) -> Any:
        """What the tool has returned."""
        if self._failure is not None:
            raise self._failure
        if self._status == "cancelled":
            raise RuntimeError(
                f"the task was cancelled by the server{f': {self._told}' if self._told else ''}"
            )
        return _result(self._early_result or await self._request("tasks/result", {"taskId": task_id}))

    async def _ask(self, method: str, task_id: str) -> None:
        try:
            self._note(await self._request(method, {"taskId": task_id}))
        except Exception as error:
            if not self._has_exited():
                raise
            self._failure, self._status = error, "cancelled"

    def _note(self, task: Mapping[str, Any]) -> None:
        self._status = str(task.get("status"))
        suggested = task.get("pollInterval")
        if isinstance(suggested, int | float):
            self._pause = min(max(suggested / 1000, 0.01), _LONGEST_PAUSE)
        message = task.get("statusMessage")
        if isinstance(message, str) and message != self._told:
            self._told = message
            if self._progress is not None:
                self._progress(f"{message}\n")


async def _request(session: Any, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request, as plain data."""
    dispatcher = getattr(session, "_dispatcher", None)
    if dispatcher is not None:  # 2.x
        return dict(await dispatcher.send_raw_request(method, dict(params), {}))
    types: Any = import_module("mcp.types")
    request = types.Request[dict[str, Any], str](method=method, params=dict(params))
    result = await session.send_request(request, types.Result)
    return dict(result.model_dump(by_alias=True, mode="json", exclude_none=True))


def _result(said: Mapping[str, Any]) -> Any:
    types: Any = import_module("mcp.types")
    return types.CallToolResult.model_validate(said)


def _capabilities(session: Any) -> Any:
    """What the server offers for tasks; None if that is unknown."""
    offered = getattr(session, "server_capabilities", None)  # 2.x
    if offered is None and (ask := getattr(session, "get_server_capabilities", None)) is not None:
        offered = ask()
    return getattr(offered, "tasks", None)


def _has(offered: Any, *path: str) -> bool:
    for name in path:
        offered = getattr(offered, name, None)
    return offered is not None
