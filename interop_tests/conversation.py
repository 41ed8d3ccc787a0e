"""A client that a test drives, with the agent that it has spawned.

The client is a process of its own (`programs/client.py`, `programs/client.mjs`), connected by a socket: commands go
in, events come out, and a thread keeps them in the order in which they came. Tests wait for events, with a deadline
that only a hang reaches, and look at that order.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interop_tests.pairs import NODE_PACKAGES, ROOT, Pair
from interop_tests.process_table import MARK, PATIENCE, marked, wait_until_gone

Event = dict[str, Any]


class Refused(Exception):
    """The answer to a call was an error."""

    def __init__(self, event: Event) -> None:
        super().__init__(event["message"])
        self.code = event["code"]
        self.data = event.get("data")
        self.kinds = event.get("kind", [])


class Conversation:
    def __init__(self, pair: Pair, folder: Path, agent_command: list[str] | None = None) -> None:
        self.pair = pair
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._last_call = 0
        self._errors = (folder / "stderr.txt").open("wb")
        self._socket = self._start(agent_command or pair.agent.agent_command())
        self._reader = threading.Thread(target=self._read, name="events", daemon=True)
        self._reader.start()
        self.agent_pid: int = self.wait_for("started")["agent"]  # None if it was there before

    def _start(self, agent_command: list[str]) -> socket.socket:
        path = str(self.folder / "control")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            listener.settimeout(PATIENCE)
            env = {
                **os.environ,
                MARK: self.mark,
                "PYTHONPATH": str(ROOT),
                "QUIESCE_INTEROP_NODE": str(NODE_PACKAGES),
            }
            self.client = subprocess.Popen(
                self.pair.client.client_command(path, agent_command),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
            )
            try:
                return listener.accept()[0]
            except TimeoutError:
                self.client.kill()
                raise AssertionError(f"the client did not start: {self.errors()}") from None

    def _read(self) -> None:
        with self._socket.makefile("rb") as lines:
            try:
                for line in lines:
                    self._add(json.loads(line))
            except OSError:
                pass  # a client that was killed resets its socket
        self._add({"event": "end of events"})

    def _add(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def errors(self) -> str:
        """What both programs wrote to their stderr."""
        return (self.folder / "stderr.txt").read_text(errors="replace")

    # Waiting

    def wait_for(self, kind: str, *, within: float = PATIENCE, **fields: Any) -> Event:
        """The first event of this kind with these fields."""
        return self._wait(
            lambda one: one["event"] == kind and fields.items() <= one.items(), within, kind, fields
        )

    def wait_for_update(self, session: str, kind: str) -> Event:
        def wanted(one: Event) -> bool:
            if one["event"] != "update" or one["session"] != session:
                return False
            shown: str = one["update"]["sessionUpdate"]
            return shown == kind

        update: Event = self._wait(wanted, PATIENCE, "update", {"session": session, "sessionUpdate": kind})[
            "update"
        ]
        return update

    def _wait(
        self, wanted: Callable[[Event], bool], within: float, kind: str, fields: dict[str, Any]
    ) -> Event:
        deadline = time.monotonic() + within
        seen = 0
        with self._changed:
            while True:
                for event in self.events[seen:]:
                    if wanted(event):
                        return event
                seen = len(self.events)
                over = seen and self.events[-1]["event"] == "end of events"
                if over or not self._changed.wait(deadline - time.monotonic()):
                    why = "the client has ended" if over else f"{within:g} s have passed"
                    raise AssertionError(
                        f"no {kind} {fields}, and {why}; it said {self.events[-8:]}; stderr: {self.errors()[-3000:]}"
                    )

    # Commands

    def start(self, do: str, **arguments: Any) -> int:
        """Send a command and do not wait. Returns the number of the call."""
        self._last_call += 1
        line = json.dumps({"id": self._last_call, "do": do, **arguments}) + "\n"
        self._socket.sendall(line.encode())
        return self._last_call

    def finish(self, call: int) -> Any:
        """The answer to a call."""
        answers = ("result", "error", "aborted")
        event = self._wait(
            lambda one: one["event"] in answers and one["id"] == call, PATIENCE, "answer", {"call": call}
        )
        if event["event"] == "error":
            raise Refused(event)
        return event.get("result", event["event"])

    def call(self, do: str, **arguments: Any) -> Any:
        return self.finish(self.start(do, **arguments))

    # What tests do most

    def open(self) -> None:
        self.call("initialize")
        self.call("authenticate", method_id="token")

    def new_session(self) -> str:
        session: str = self.call("new_session", cwd=str(self.folder))["sessionId"]
        return session

    def start_prompt(self, session: str, text: str, *more: dict[str, Any]) -> int:
        return self.start("prompt", session_id=session, prompt=[{"type": "text", "text": text}, *more])

    def prompt(self, session: str, text: str, *more: dict[str, Any]) -> str:
        stop_reason: str = self.finish(self.start_prompt(session, text, *more))["stopReason"]
        return stop_reason

    def updates(self, session: str) -> list[Event]:
        with self._changed:
            return [
                one["update"] for one in self.events if one["event"] == "update" and one["session"] == session
            ]

    def said(self, session: str) -> list[str]:
        """The texts of the agent's messages."""
        chunks = [one for one in self.updates(session) if one["sessionUpdate"] == "agent_message_chunk"]
        return [one["content"]["text"] for one in chunks]

    def position(self, kind: str, **fields: Any) -> int:
        with self._changed:
            places = [
                place
                for place, one in enumerate(self.events)
                if one["event"] == kind and fields.items() <= one.items()
            ]
        assert places, f"no {kind} {fields}"
        return places[-1]

    # The end

    def close(self) -> Event:
        """The client closes as its library has it; whatever remains is found by the process table."""
        self.start("close")
        closed = self.wait_for("closed")
        self.wait_for("ended")
        assert self.client.wait(PATIENCE) == 0, self.errors()
        return closed

    def kill(self) -> None:
        """However the test went, leave nothing behind."""
        for pid in (self.client.pid, *marked(self.mark)):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.client.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._socket.close()
        self._errors.close()

    def nothing_is_left(self) -> None:
        wait_until_gone(self.mark)
