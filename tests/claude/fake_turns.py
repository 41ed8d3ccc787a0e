"""The turns of the fake CLI: each is a generator, which says what its steps are for, and yields what it waits for.

A step is `[kind, ...]`: one of the `_do_…` below, with its arguments. An interrupt is an exception where the turn waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Any, Protocol

SESSION = "6f6f9d4e-0000-4000-8000-000000000000"
MODEL = "claude-fake-1"
VERSION = "2.1.325"
CLIENT = {"name": "claude-code", "version": VERSION}


class Interrupted(Exception):
    """Raised in a turn where it waits."""


class Failed(Exception):
    """Raised in a turn that comes to a bad end by itself."""


class Wait:
    """What a turn waits for: that something is so, or that time has passed; whichever is first."""

    def __init__(self, ready: Callable[[], bool] = lambda: False, until: float | None = None) -> None:
        self.ready = ready
        self.until = until


class Tool(Protocol):
    """A program that a tool call has started."""

    def ended(self) -> bool: ...

    def stop(self) -> None:
        """End it, and wait for that."""


class Place(Protocol):
    """Where the agent runs."""

    poll: float | None  # seconds between two looks at what it is not told of

    def now(self) -> float: ...

    def write(self, line: bytes) -> None: ...

    def unwritten(self) -> int:
        """Bytes that nobody has read."""

    def complain(self, text: str) -> None:
        """To stderr."""

    def exit(self, code: int) -> None:
        """At once, whatever is unwritten."""

    def flag(self, name: str) -> bool:
        """Whether the test has raised it."""

    def start_tool(self, options: dict[str, Any]) -> Tool:
        """A program that ticks."""

    def start_grandchild(self, options: dict[str, Any]) -> None:
        """A program that inherits everything, and that nobody ends."""

    def happened(self, what: str, frame: object = None) -> None:
        """For the record that the test reads."""


Turn = Generator[Wait, None, None]


class Turns:
    """What a turn needs, and what it may consist of."""

    def __init__(self, script: dict[str, Any], place: Place, asks_permission: bool) -> None:
        self._script = script
        self._place = place
        self._asks_permission = asks_permission
        self._hooks: dict[str, list[dict[str, Any]]] = {}
        self._mcp: list[str] = script.get("mcp_servers", [])
        self._prompts: list[dict[str, Any]] = []
        self._folded: list[dict[str, Any]] = []
        self._ids = 0
        self._answers: dict[
            str, dict[str, Any] | None
        ] = {}  # by the id of our question; None until it is answered
        self._failed = False
        self._said = 0
        self.input_ended = False
        self.over = False

    # Questions of ours

    def _ask(self, request: dict[str, Any], number: str | None = None, *, prefix: str = "ask") -> str:
        if number is None:
            self._ids += 1
            number = f"{prefix}-{self._ids}"
        self._answers[number] = None
        self._say({"type": "control_request", "request_id": number, "request": request})
        return number

    def _answered(self, response: dict[str, Any]) -> None:
        number = response.get("request_id", "")
        if number in self._answers and self._answers[number] is None:
            self._answers[number] = response
        else:
            self._place.happened("late", response)

    def _answer_to(self, number: str) -> Generator[Wait, None, dict[str, Any] | None]:
        """What the SDK says to it; None if its input has ended before."""
        try:
            yield Wait(lambda: self._answers[number] is not None or self.input_ended)
        finally:
            answer = self._answers.pop(number)
        return answer

    def _mcp_call(self, server: str, message: dict[str, Any]) -> Generator[Wait, None, dict[str, Any] | None]:
        number = self._ask(
            {"subtype": "mcp_message", "server_name": server, "message": {"jsonrpc": "2.0", **message}},
            prefix="mcp",
        )
        return (yield from self._answer_to(number))

    def _greet_servers(self, then: Callable[[], None]) -> Turn:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
        for server in self._mcp:
            yield from self._mcp_call(server, {"id": 0, "method": "initialize", "params": hello})
            yield from self._mcp_call(server, {"method": "notifications/initialized"})
            yield from self._mcp_call(server, {"id": 1, "method": "tools/list"})
        then()

    # A turn

    def _play(self, prompt: dict[str, Any], steps: list[list[Any]]) -> Turn:
        self._lifecycle(prompt, "started")
        about = {"cwd": "/", "tools": ["Bash"], "model": MODEL, "claude_code_version": VERSION}
        self._say({"type": "system", "subtype": "init", **about})
        error, errors = None, ["interrupted"]
        self._folded = []
        try:
            for kind, *arguments in steps:
                yield from getattr(self, f"_do_{kind}")(*arguments)
        except Interrupted:
            error = "error_during_execution"
            self._user("[Request interrupted by user]")
        except Failed as failure:
            error, errors = "error_during_execution", [str(failure)]
        self._failed = error is not None
        result: dict[str, Any] = {
            "type": "result",
            "subtype": error or "success",
            "is_error": self._failed,
            "duration_ms": 1,
            "duration_api_ms": 1,
            "num_turns": 1,
            "stop_reason": None if error else "end_turn",
            "total_cost_usd": 0.0,
            "usage": {},
            "queued_turn_count": len(self._prompts),
        }
        result |= {"errors": errors} if error else {"result": str(_content(prompt))}
        for each in self._folded:
            self._lifecycle(each, "completed")
        self._say(result)
        self._lifecycle(prompt, "cancelled" if error else "completed")
        if not self._prompts:
            self._state("idle")
        if "then_exit" in self._script:
            yield from self._do_exit(self._script["then_exit"])

    def _until(self, ready: Callable[[], bool]) -> Wait:
        poll = self._place.poll
        return Wait(ready, None if poll is None else self._place.now() + poll)

    def _do_text(self, text: str) -> Turn:
        self._assistant({"type": "text", "text": text})
        yield Wait(lambda: True)

    def _do_thinking(self, text: str) -> Turn:
        self._assistant({"type": "thinking", "thinking": text, "signature": "s"})
        yield Wait(lambda: True)

    def _do_talk(self, every: float, times: int | None = None) -> Turn:
        """An answer that takes its time; for ever, unless told how many messages it has."""
        said = 0
        while times is None or said < times:
            self._assistant({"type": "text", "text": f"word {said}"})
            said += 1
            yield Wait(until=self._place.now() + every)

    def _do_flood(self, size: int, times: int | None = None) -> Turn:
        """As many messages as are read, and some more."""
        said, text = 0, "x" * size
        while times is None or said < times:
            self._assistant({"type": "text", "text": text})
            said += 1
            if times is None and self._place.unwritten() > 1 << 20:
                yield self._until(lambda: self._place.unwritten() < 1 << 19)

    def _do_sleep(self, seconds: float) -> Turn:
        yield Wait(until=self._place.now() + seconds)

    def _do_wait(self, flag: str) -> Turn:
        """Until the test raises this flag."""
        while not self._place.flag(flag):
            yield self._until(lambda: self._place.flag(flag))

    def _do_hang(self) -> Turn:
        yield Wait()

    def _do_fail(self, text: str) -> Turn:
        """The turn ends with an error, as when the API is down."""
        yield Wait(lambda: True)
        raise Failed(text)

    def _do_tool(self, options: dict[str, Any] | None = None) -> Turn:
        """A call of Bash: hooks, permission, a program that ticks until it is stopped, or for `times` ticks."""
        options = options or {}
        name, wanted = str(options.get("name", "Bash")), {"command": "tick"}
        self._ids += 1
        call = f"toolu_{self._ids}"
        self._assistant({"type": "tool_use", "id": call, "name": name, "input": wanted})
        try:
            refused = yield from self._ask_hooks("PreToolUse", name, wanted, call)
            refused = refused or (yield from self._ask_permission(options, name, wanted, call))
        except Interrupted:
            self._tool_result(call, "The tool use was rejected", is_error=True)
            raise
        if refused is not None:
            self._tool_result(call, refused, is_error=True)
            return
        tool = self._place.start_tool(options)
        try:
            while not tool.ended():
                yield self._until(tool.ended)
        except Interrupted:
            tool.stop()
            self._tool_result(call, "[Request interrupted by user for tool use]", is_error=True)
            raise
        finally:
            tool.stop()
        self._tool_result(call, "done")
        self._take_in()

    def _take_in(self) -> None:
        """Prompts that came while a tool was at work become part of the turn, and get no result of their own."""
        self._folded, self._prompts = [*self._folded, *self._prompts], []
        for prompt in self._folded:
            self._lifecycle(prompt, "started")

    def _ask_hooks(
        self, event: str, name: str, wanted: dict[str, Any], call: str
    ) -> Generator[Wait, None, str | None]:
        for entry in self._hooks.get(event) or ():
            if entry.get("matcher") not in (None, "", name):
                continue
            for callback in entry["hookCallbackIds"]:
                given = {
                    "session_id": SESSION,
                    "transcript_path": "/transcript",
                    "cwd": "/",
                    "permission_mode": "default",
                    "hook_event_name": event,
                    "tool_name": name,
                    "tool_input": wanted,
                    "tool_use_id": call,
                }
                number = self._ask(
                    {
                        "subtype": "hook_callback",
                        "callback_id": callback,
                        "input": given,
                        "tool_use_id": call,
                    }
                )
                answer = yield from self._answer_to(number)
                output = (answer or {}).get("response") or {}
                if output.get("decision") == "block":
                    return str(output.get("reason"))
        return None

    def _ask_permission(
        self, options: dict[str, Any], name: str, wanted: dict[str, Any], call: str
    ) -> Generator[Wait, None, str | None]:
        if not self._asks_permission or not options.get("ask", True):
            return None
        self._state("requires_action")
        number = self._ask(
            {
                "subtype": "can_use_tool",
                "tool_name": name,
                "display_name": name,
                "input": wanted,
                "description": "Tick",
                "permission_suggestions": [
                    {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
                ],
                "tool_use_id": call,
            }
        )
        answer = yield from self._answer_to(number)
        self._state("running")
        if answer is None:
            return "Tool permission stream closed before response received"
        if answer["subtype"] == "error":
            return str(answer["error"])
        verdict = answer["response"]
        return None if verdict["behavior"] == "allow" else str(verdict["message"])

    def _do_mcp(self, server: str, tool: str, arguments: dict[str, Any]) -> Turn:
        """A call of a tool in the SDK's process."""
        self._ids += 1
        call = f"toolu_{self._ids}"
        self._assistant(
            {"type": "tool_use", "id": call, "name": f"mcp__{server}__{tool}", "input": arguments}
        )
        number = 100 + self._ids
        params = {"name": tool, "arguments": arguments, "_meta": {"claudecode/toolUseId": call}}
        try:
            answer = yield from self._mcp_call(
                server, {"id": number, "method": "tools/call", "params": params}
            )
        except Interrupted:
            gone = {"requestId": number, "reason": "AbortError: remote-cancel"}
            message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gone}
            self._ask({"subtype": "mcp_message", "server_name": server, "message": message}, prefix="mcp")
            self._tool_result(call, "cancelled", is_error=True)
            raise
        reply = ((answer or {}).get("response") or {}).get("mcp_response") or {}
        self._tool_result(call, reply.get("result", {}).get("content") or json.dumps(reply))

    # Steps below the protocol, for what a CLI should not do, and may

    def _do_ask(self, number: str, request: dict[str, Any]) -> Turn:
        """A question by this id, whose answer is not waited for."""
        self._ask(request, number)
        yield Wait(lambda: True)

    def _do_await(self, number: str) -> Turn:
        """The answer to one of those."""
        yield from self._answer_to(number)

    def _do_cancel(self, number: str) -> Turn:
        self._answers.pop(number, None)
        self._say({"type": "control_cancel_request", "request_id": number})
        yield Wait(lambda: True)

    def _do_raw(self, text: str) -> Turn:
        self._place.write(text.encode())
        yield Wait(lambda: True)

    def _do_say(self, message: dict[str, Any]) -> Turn:
        self._say(message)
        yield Wait(lambda: True)

    def _do_complain(self, text: str, times: int = 1) -> Turn:
        self._place.complain(text * times)
        yield Wait(lambda: True)

    def _do_grandchild(self, options: dict[str, Any] | None = None) -> Turn:
        self._place.start_grandchild(options or {})
        yield Wait(lambda: True)

    def _do_exit(self, code: int) -> Turn:
        """When all that was said is written."""
        while self._place.unwritten():
            yield self._until(lambda: not self._place.unwritten())
        self.over = True
        self._place.exit(code)
        yield Wait()

    # Saying

    def _state(self, state: str) -> None:
        if not self._script.get("no_states"):
            change = {"subtype": "session_state_changed", "state": state, "sdk_host_only": True}
            self._say({"type": "system", **change})

    def _lifecycle(self, prompt: dict[str, Any], state: str) -> None:
        """What becomes of a prompt, if it has a name."""
        if "uuid" in prompt and not self._script.get("no_states"):
            self._say({"type": "command_lifecycle", "command_uuid": prompt["uuid"], "state": state})

    def _assistant(self, block: dict[str, Any]) -> None:
        self._said += 1
        message = {
            "id": f"msg_{self._said}",
            "role": "assistant",
            "model": MODEL,
            "content": [block],
            "usage": {},
        }
        self._say({"type": "assistant", "message": message, "parent_tool_use_id": None})

    def _user(self, text: str) -> None:
        content = [{"type": "text", "text": text}]
        self._say(
            {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None}
        )

    def _tool_result(self, call: str, content: object, *, is_error: bool = False) -> None:
        block = {"type": "tool_result", "tool_use_id": call, "content": content, "is_error": is_error}
        self._say(
            {"type": "user", "message": {"role": "user", "content": [block]}, "parent_tool_use_id": None}
        )

    def _say(self, frame: dict[str, Any]) -> None:
        if not frame["type"].startswith("control_"):
            self._ids += 1
            frame = {**frame, "session_id": SESSION, "uuid": f"00000000-0000-4000-8000-{self._ids:012d}"}
        if frame["type"] in ("control_response", "control_cancel_request", "result"):
            self._place.happened("said", frame)
        self._place.write(json.dumps(frame).encode() + b"\n")


def _content(prompt: dict[str, Any]) -> object:
    return prompt.get("message", {}).get("content")
