"""The turns of an agent's sessions: which prompts are being answered, and how they are stopped.

Invariants
- One turn a session. A prompt that comes while the one before is being cancelled waits for its end; one that comes while it runs is refused.
- There is one way to stop a turn, whoever asks (`session/cancel`, `session/close`, `session/delete`, `$/cancel_request`, the end of the
  connection): the handler of the prompt is cancelled, and with it its token, which has a callback that does the rest. What was asked of the client
  for that session is settled, the agent's own `cancel` is called, and the prompt is answered `cancelled`, whatever its handler makes of it.
- A turn is over when its handler has ended, and the agent's own `cancel` too, which must not fall upon the next one. That one is
  a clean-up: the end of the connection does not cut it short, and it has no longer than `Grace` gives to one.
- Where there is no turn, there is nothing to stop: nothing happens, and nothing is remembered for the next one.
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

    __slots__ = ("ended", "handlers", "note", "prompt", "session_id", "told")

    def __init__(self, session_id: str, prompt: Incoming) -> None:
        self.session_id = session_id
        self.prompt = prompt  # the request: `stopped` by every way to stop it
        self.note = CancelNotification(session_id=session_id)  # for the agent's own `cancel`
        self.told = False  # whether the agent's own `cancel` has begun
        self.handlers = 1  # that have not ended: of the prompt, and of its cancel
        self.ended = WaitQueue()


class Turns:
    """All turns of one connection, by session."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}

    def get(self, session_id: str) -> Turn | None:
        """The turn that the session is in; None if it is in none."""
        return self._turns.get(session_id)

    async def begin(self, session_id: str, prompt: Incoming) -> Turn:
        """The turn of this prompt."""
        while (before := self._turns.get(session_id)) is not None:
            if before.prompt.stopped is None:
                raise RequestError.invalid_request(
                    {
                        "details": f"session {session_id!r} is still answering a prompt: cancel that first, or wait for it"
                    }
                )
            await self._end_of(before)
        turn = self._turns[session_id] = Turn(session_id, prompt)
        return turn

    def end(self, turn: Turn) -> None:
        """A handler of it has ended."""
        turn.handlers -= 1
        if turn.handlers:
            return
        if self._turns.get(turn.session_id) is turn:
            del self._turns[turn.session_id]
        turn.ended.wake_all()

    async def wait_until_idle(self, session_id: str) -> None:
        """Until the turn that the session is in now is over."""
        turn = self._turns.get(session_id)
        if turn is not None:
            await self._end_of(turn)

    async def _end_of(self, turn: Turn) -> None:
        await turn.ended.wait_until(lambda: self._turns.get(turn.session_id) is not turn)
