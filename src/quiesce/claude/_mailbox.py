"""What the agent has said and nobody has read yet, by turn.

Each prompt is a turn, and each `result` ends one, in the order of the prompts. Whoever reads the answer to a prompt gets the messages of its turn and
no others: what is left of an interrupted turn is passed over.

The reader of the CLI's output never waits for a consumer, so that control messages are never held up. If much is unread, the CLI is not read
for a while; but it is whenever somebody waits for an answer to a control request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quiesce.kernel._backend import Backend, Waiter


class Mailbox:
    """Messages, in the order in which they came, each with its turn."""

    def __init__(self, backend: Backend, on_change: Callable[[], None]) -> None:
        self._backend = backend
        self._on_change = on_change
        self._unread: deque[tuple[int, Any, int]] = deque()
        self._waiters: list[Waiter] = []
        self.bytes = 0
        self.asked = 0  # prompts that were sent
        self.turn = 1  # the turn that what comes in belongs to
        self.over = False
        self.error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a prompt was sent whose result has not come."""
        return self.turn <= self.asked

    def prompted(self) -> int:
        """A prompt is sent; returns the number of its turn."""
        self.asked += 1
        return self.asked

    def came(self, message: Any, size: int, *, ends_turn: bool) -> None:
        """The agent has said something."""
        self._unread.append((self.turn, message, size))
        self.bytes += size
        if ends_turn:
            self.turn += 1
        self._wake()

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes; `error` is for whoever still waits for something."""
        if not self.over:
            self.over = True
            self.error = error
            self._wake()

    def drop(self) -> None:
        """Nobody will read the rest."""
        self._unread.clear()
        self.bytes = 0

    async def next_of(self, turn: int | None, is_over: Callable[[], bool] = lambda: False) -> Any:
        """The next message of this turn, or of any; None when there is none left and the turn, or what `is_over` tells of, is over."""
        while True:
            while self._unread:
                if turn is not None and self._unread[0][0] > turn:
                    return None
                of, message, size = self._unread.popleft()
                self.bytes -= size
                self._on_change()
                if turn is None or of == turn:
                    return message
            if (turn is not None and self.turn > turn) or is_over():
                return None
            if self.over:
                if self.error is not None:
                    raise self.error
                return None
            await self._wait()

    async def _wait(self) -> None:
        waiter = self._backend.make_waiter()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def poke(self) -> None:
        """Let those who wait look again."""
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()
