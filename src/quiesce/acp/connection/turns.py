"""The turns of an agent's sessions: which prompts are being answered, and how they are stopped.

Invariants
- A session has one turn at a time. A prompt that arrives while the previous turn is being cancelled waits
  until it has ended; a prompt that arrives while the previous turn runs is rejected.
- There is one way to stop a turn, no matter what requests it (`session/cancel`, `session/close`,
  `session/delete`, `$/cancel_request`, the end of the connection): the prompt's handler is cancelled, and
  with it its token, whose callback does the rest. Requests to the client for that session are settled, the
  agent's own `cancel` is called, and the prompt is answered `cancelled`, no matter what its handler returns
  or raises.
- A turn has ended when its handler has ended and the agent's own `cancel` has too, which must not hit the
  next turn. That `cancel` is a clean-up: the end of the connection does not interrupt it, and it has as much
  time as `Grace` gives to one.
- Where there is no turn, there is nothing to stop: nothing happens, and nothing is remembered for the next
  turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.acp.exceptions import RequestError
from quiesce.acp.schema import CancelNotification
from quiesce.kernel.inner import WaitQueue

if TYPE_CHECKING:
    from quiesce.wire.inner import Incoming


class Turn:
    """One prompt that is being answered."""

    __slots__ = ("agent_notified", "ended", "handlers", "notification", "prompt", "session_id")

    def __init__(self, session_id: str, prompt: Incoming) -> None:
        self.session_id = session_id
        #: The request; its `stopped` is set by every way to stop the turn.
        self.prompt = prompt
        #: The argument of the agent's own `cancel`.
        self.notification = CancelNotification(session_id=session_id)
        #: Whether the agent's own `cancel` has been called.
        self.agent_notified = False
        #: How many handlers have not ended: that of the prompt, and the agent's own `cancel`.
        self.handlers = 1
        self.ended = WaitQueue()


class Turns:
    """All turns of one connection, by session."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}

    def get(self, session_id: str) -> Turn | None:
        """Return the current turn of the session; None if it has none."""
        return self._turns.get(session_id)

    async def begin(self, session_id: str, prompt: Incoming) -> Turn:
        """Begin the turn of this prompt, after a previous one that is being cancelled; raise if it is not."""
        # A loop, because another prompt may have waited for the same turn and begun its own first.
        while (before := self._turns.get(session_id)) is not None:
            if before.prompt.stopped is None:
                raise RequestError.invalid_request(
                    {
                        "details": f"session {session_id!r} is still answering a prompt: "
                        "cancel that first, or wait for it"
                    }
                )
            await self._wait_for_end(before)
        turn = self._turns[session_id] = Turn(session_id, prompt)
        return turn

    def end(self, turn: Turn) -> None:
        """Record that a handler of the turn has ended; the last one ends the turn."""
        turn.handlers -= 1
        if turn.handlers:
            return
        if self._turns.get(turn.session_id) is turn:
            del self._turns[turn.session_id]
        turn.ended.wake_all()

    async def wait_until_idle(self, session_id: str) -> None:
        """Wait until the current turn of the session has ended."""
        turn = self._turns.get(session_id)
        if turn is not None:
            await self._wait_for_end(turn)

    async def _wait_for_end(self, turn: Turn) -> None:
        await turn.ended.wait_until(lambda: self._turns.get(turn.session_id) is not turn)
