"""How long a run waits for work in the background after its last result.

A result ends a turn, and not always the run: sub-agents may work on in the background, and when one of them ends, the CLI begins another turn by
itself. Until no turn is due the CLI says that it is `running`. One sub-agent that hangs would keep it so for ever. The CLI has a limit for
that, ten minutes unless an environment variable says otherwise; but it counts from the end of its input, and we keep that open, for hooks,
permissions, tools and interrupts. So the same limit is kept here.

It counts the time between turns: from a result on, and anew when a task in the background ends, when the CLI tells its state, and when it begins a turn.
It does not count during a turn, nor while the CLI waits for an answer of ours (`requires_action`), nor while more prompts may come. What
sub-agents say does not matter: they are what the limit is for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from quiesce._safe.printed import logger
from quiesce.claude.types import TERMINAL_TASK_STATUSES

if TYPE_CHECKING:
    from quiesce.kernel.inner import Timer

    from .session import Session

VARIABLE: Final = "CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS"  # 0: no limit
_DEFAULT: Final = 600.0  # seconds, as the CLI's own
_RESTARTS: Final = ("session_state_changed", "init")


def seconds_to_wait(env: Mapping[str, str]) -> float:
    """The limit as the CLI sees it: in `env`, which are the options', or else in the environment of this process."""
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
        self._tasks: dict[str, str] = {}  # those in the background: what they are to do
        self._timer: Timer | None = None

    def heard(self, message: dict[str, Any]) -> None:
        """The CLI has said this, and the session has dealt with it."""
        kind, subtype = message.get("type"), message.get("subtype")
        if kind == "result":
            self._in_turn = False
            self.end()
        elif kind in ("assistant", "stream_event") and message.get("parent_tool_use_id") is None:
            self._in_turn = True
        elif kind == "system" and (self._has_ended_task(message) or subtype in _RESTARTS):
            self.end()
        self.look()

    def _has_ended_task(self, message: dict[str, Any]) -> bool:
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

    def look(self) -> None:
        """Count, or do not."""
        session = self._session
        between_turns = not (self._in_turn or session.mailbox.busy or session.mailbox.over)
        if not (between_turns and session.state == "running" and session.all_said):
            self.end()
        elif self._timer is None and self._seconds < math.inf:
            backend = session.backend
            self._timer = backend.call_at(backend.now() + self._seconds, self._is_over)

    def end(self) -> None:
        """Count no more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _is_over(self) -> None:
        self._timer = None
        tasks = ", ".join(map(repr, self._tasks.values())) or "of which the CLI has told nothing"
        logger.warning(
            "the CLI is stopped: %g s after its result it was still waiting for work in the background (%s). "
            "Set %s=0 to wait without a limit",
            self._seconds,
            tasks,
            VARIABLE,
        )
        self._session.mailbox.end(None)
