"""What the Claude Code CLI says and does, without any I/O: its stdio protocol, turn by turn, by a script.

It is driven by whoever has the lines: `fake_cli` as a program, `memory_cli` inside a test's own process. Nothing here is
imported that takes time to import.

A script is a JSON object:
- `turns`: for each prompt a list of steps (see `fake_turns`); prompts that are left over get the last one.
- `mute`: subtypes of control requests that are never answered; `"*"` is all of them, and prompts too.
- `then_exit`: the code with which it exits after a turn, though nobody has asked for that.
- `no_states`: as CLIs from before `session_state_changed` and `command_lifecycle`.

Invariants, as seen from the real one
- A turn is: state `running`, `system/init`, what its steps say, `result`; then the next prompt's, or state `idle`. Of a prompt that has a `uuid` it
  is said when it is queued, started, and completed or cancelled.
- Prompts that come while a tool is at work become part of that turn, which has one result for all of them.
- An interrupt takes back the questions that wait (`control_cancel_request`) first, is answered then, and after that the turn ends with a
  `result` that is an error. Prompts that wait are not dropped.
- The end of input does not end a turn. Questions that wait are answered by it: a permission is not given.
- The exit code is 1 if the last result was an error, else 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.claude.fake_turns import MODEL, VERSION, Interrupted, Place, Turn, Turns, Wait


class FakeAgent(Turns):
    """The state of one CLI."""

    def __init__(self, script: dict[str, Any], place: Place, *, asks_permission: bool = True) -> None:
        super().__init__(script, place, asks_permission)
        self._mute: list[str] = script.get("mute", [])
        self._turn: Turn | None = None
        self._wait = Wait()
        self._turns = 0

    # What the driver calls

    @property
    def exit_code(self) -> int:
        return 1 if self._failed else 0

    def until(self) -> float | None:
        """When to call `step` though nothing has come in."""
        return self._wait.until if self._turn is not None else None

    def line(self, line: bytes) -> None:
        """What the SDK has written."""
        if not line.strip():
            return
        frame = json.loads(line)
        self._place.happened("got", frame)
        kind = frame.get("type")
        if kind == "control_request":
            self._asked(frame["request_id"], frame["request"])
        elif kind == "control_response":
            self._answered(frame["response"])
        elif kind == "user" and "*" not in self._mute:
            if self._turn is None and not self._prompts:
                self._state("running")
            self._prompts.append(frame)
            self._lifecycle(frame, "queued")
        self.step()

    def eof(self) -> None:
        """The SDK writes nothing more."""
        self._place.happened("eof")
        self.input_ended = True
        self.step()

    def step(self) -> None:
        """Go on as far as one can."""
        while not self.over:
            if self._turn is None:
                if not self._prompts:
                    break
                self._begin()
            elif not self._advance():
                break
        self.over = self.over or (self.input_ended and self._turn is None and not self._prompts)

    def _begin(self) -> None:
        turns = self._script.get("turns") or [[]]
        steps = turns[min(self._turns, len(turns) - 1)]
        self._turns += 1
        self._wait = Wait(lambda: True)
        self._turn = self._play(self._prompts.pop(0), steps)

    def _advance(self) -> bool:
        turn, wait = self._turn, self._wait
        assert turn is not None
        if not wait.ready() and (wait.until is None or wait.until > self._place.now()):
            return False
        self._drive(lambda: next(turn))
        return True

    def _drive(self, go: Callable[[], Wait]) -> None:
        try:
            self._wait = go()
        except (StopIteration, Interrupted):
            self._turn = None

    # Control requests of the SDK

    def _asked(self, number: str, request: dict[str, Any]) -> None:
        subtype = request["subtype"]
        if subtype in self._mute or "*" in self._mute:
            return
        answer = getattr(self, f"_on_{subtype}", None)
        if answer is None:
            text = f"Unsupported control request subtype: {subtype}"
            refusal = {"request_id": number, "error": text, "error_code": "unsupported_request"}
            self._say({"type": "control_response", "response": {"subtype": "error", **refusal}})
        else:
            answer(number, request)

    def _succeed(self, number: str, response: dict[str, Any]) -> None:
        self._say(
            {
                "type": "control_response",
                "response": {"subtype": "success", "request_id": number, "response": response},
            }
        )

    def _refuse(self, number: str, error: str) -> None:
        self._say(
            {
                "type": "control_response",
                "response": {"subtype": "error", "request_id": number, "error": error},
            }
        )

    def _on_initialize(self, number: str, request: dict[str, Any]) -> None:
        self._hooks = request.get("hooks") or {}
        info = {
            "commands": [],
            "agents": [],
            "output_style": "default",
            "available_output_styles": ["default"],
            "models": [{"value": "default", "displayName": "Default", "description": MODEL}],
            "account": {},
            "claude_code_version": VERSION,
            "current_permission_mode": "default",
            "session_state": "idle",
        }
        if not self._mcp:
            self._succeed(number, info)
            return
        # It asks the servers in the SDK's process before it answers.
        self._turn = self._greet_servers(lambda: self._succeed(number, info))
        self._wait = Wait(lambda: True)

    def _on_interrupt(self, number: str, request: dict[str, Any]) -> None:
        for question, answer in list(self._answers.items()):
            if answer is None and question.startswith("ask-"):
                self._say({"type": "control_cancel_request", "request_id": question})
        waiting = [prompt["uuid"] for prompt in self._prompts if "uuid" in prompt]
        self._succeed(number, {"still_queued": waiting})
        turn = self._turn
        if turn is not None:
            self._drive(lambda: turn.throw(Interrupted()))

    def _on_set_model(self, number: str, request: dict[str, Any]) -> None:
        self._succeed(number, {"model": request.get("model") or MODEL})

    def _on_set_permission_mode(self, number: str, request: dict[str, Any]) -> None:
        self._succeed(number, {"mode": request["mode"]})

    def _on_mcp_status(self, number: str, request: dict[str, Any]) -> None:
        self._succeed(number, {"mcpServers": [{"name": name, "status": "connected"} for name in self._mcp]})

    def _on_get_context_usage(self, number: str, request: dict[str, Any]) -> None:
        self._succeed(number, {"categories": [], "totalTokens": 0, "maxTokens": 200000})

    def _on_mcp_reconnect(self, number: str, request: dict[str, Any]) -> None:
        self._refuse(number, f"Server not found: {request['serverName']}")

    def _on_mcp_toggle(self, number: str, request: dict[str, Any]) -> None:
        self._refuse(number, f"Server not found: {request['serverName']}")

    def _on_rewind_files(self, number: str, request: dict[str, Any]) -> None:
        self._refuse(number, "File rewinding is not enabled.")

    def _on_stop_task(self, number: str, request: dict[str, Any]) -> None:
        self._succeed(number, {})
