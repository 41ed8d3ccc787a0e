"""How long a run waits for work in the background after its last result.

A result ends a turn, but not always the run: sub-agents may go on in the background, and when one of them
ends, the CLI begins another turn by itself. As long as turns are due, the CLI reports that it is `running`.
One sub-agent that hangs would keep it so forever. The CLI has a limit for that, ten minutes unless an
environment variable sets another. But it counts from the end of its input, and we keep the input open, for
hooks, permissions, tools and interrupts. So the same limit is implemented here.

It counts the time between turns, from a result on, and starts again when a background task ends, when the CLI
reports its state, and when it begins a turn. It does not count during a turn, nor while the CLI waits for an
answer of ours (`requires_action`), nor while more prompts may follow. Messages of sub-agents do not restart
it: they are what the limit is for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from quiesce._safe.printed import logger
from quiesce.claude.words import TERMINAL_TASK_STATUSES

if TYPE_CHECKING:
    from quiesce.kernel.inner import Timer

    from .session import Session

VARIABLE: Final = "CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS"  # 0: no limit
_DEFAULT: Final = 600.0  # seconds, as in the CLI
_RESTARTS: Final = ("session_state_changed", "init")


def seconds_to_wait(env: Mapping[str, str]) -> float:
    """Return the CLI's limit, from `env` (of the options) or the environment of this process."""
    try:
        seconds = float(env.get(VARIABLE, os.environ.get(VARIABLE, ""))) / 1000
    except (TypeError, ValueError):
        return _DEFAULT
    if math.isnan(seconds) or seconds < 0:
        return _DEFAULT
    return seconds or math.inf


class BackgroundWait:
    """The limit of one run."""

    def __init__(self, session: Session, seconds: float) -> None:
        self._session = session
        self._seconds = seconds
        self._in_turn = False
        self._tasks: dict[str, str] = {}  # descriptions of the background tasks, by id
        self._timer: Timer | None = None

    def note(self, message: dict[str, Any]) -> None:
        """Take a message of the CLI that the session has handled."""
        kind, subtype = message.get("type"), message.get("subtype")
        if kind == "result":
            self._in_turn = False
            self.end()
        # Messages of sub-agents have a `parent_tool_use_id`, and are not a turn of the session.
        elif kind in ("assistant", "stream_event") and message.get("parent_tool_use_id") is None:
            self._in_turn = True
        elif kind == "system" and (self._ends_task(message) or subtype in _RESTARTS):
            self.end()
        self.update()

    def _ends_task(self, message: dict[str, Any]) -> bool:
        subtype, task = message.get("subtype"), str(message.get("task_id"))
        if subtype == "task_started":
            self._tasks[task] = str(message.get("description"))
        elif subtype == "task_notification" or (
            subtype == "task_updated"
            and isinstance(patch := message.get("patch"), dict)
            and patch.get("status") in TERMINAL_TASK_STATUSES
        ):
            return self._tasks.pop(task, None) is not None
        return False

    def update(self) -> None:
        """Start or stop counting, as the state of the session demands."""
        session = self._session
        between_turns = not (self._in_turn or session.mailbox.busy or session.mailbox.ended)
        if not (between_turns and session.state == "running" and session.all_sent):
            self.end()
        elif self._timer is None and self._seconds < math.inf:
            backend = session.backend
            self._timer = backend.call_at(backend.now() + self._seconds, self._expire)

    def end(self) -> None:
        """Stop counting."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _expire(self) -> None:
        self._timer = None
        tasks = ", ".join(map(repr, self._tasks.values())) or "unknown to quiesce"
        logger.warning(
            "the CLI is stopped: %g s after its result it was still waiting for work in the background (%s). "
            "Set %s=0 to wait without a limit",
            self._seconds,
            tasks,
            VARIABLE,
        )
        # Only the messages end. The reader gets the end of the iteration, and that closes the session.
        self._session.mailbox.end(None)
