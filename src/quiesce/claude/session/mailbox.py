"""What the agent has said and nobody has read yet, by turn.

Each prompt has a number, in the order in which they were sent. A turn is what the CLI makes of one prompt, up to a `result`; but a prompt that comes
while a tool is at work may be made part of the turn that is on, which then answers both with one result. So we give each prompt a name
(its `uuid`), and the CLI says of each when it is `queued`, `started`, and `completed` or `cancelled` (`command_lifecycle`). Whoever reads the answer
to a prompt gets what was said since it was started, up to the result of its turn, and nothing else: what is left of an interrupted turn is
passed over. If somebody else still reads that turn, or reads the same one for another prompt, it is set aside for them, within bounds.
What belongs to no prompt of ours, as a turn that the CLI has begun by itself, is for whoever reads all messages; if somebody who reads
an answer passes it over, it is kept for them, within bounds.

CLIs that do not say so (older ones) are taken to answer each prompt with a turn of its own, in order.

The reader of the CLI's output never waits for a consumer, so that control messages are never held up. If much is unread, the CLI is not read
for a while; but it is whenever somebody waits for an answer to a control request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from anyio.lowlevel import checkpoint

from quiesce.kernel.inner import WaitQueue

if TYPE_CHECKING:
    from quiesce.kernel.inner import Backend

NOBODY: Final = 0  # the last prompt that a message answers, if it answers none
KEPT: Final = 4 * 1024 * 1024  # bytes of messages that were passed over, and that may still be wanted
SET_ASIDE: Final = 64 * 1024 * 1024  # bytes of messages that somebody else came upon before their reader did


class Reading:
    """Somebody reads the answer to this prompt, for as long as they hold this; `aside` is what readers of other ones have come upon."""

    __slots__ = ("__weakref__", "aside", "bytes", "turn")

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.aside: deque[tuple[Any, int]] = deque()
        self.bytes = 0

    def set_aside(self, message: Any, size: int) -> None:
        """The oldest go if it is too much: the result is the last."""
        self.aside.append((message, size))
        self.bytes += size
        while self.bytes > SET_ASIDE:
            self.bytes -= self.aside.popleft()[1]

    def take(self) -> Any:
        """The first of them."""
        message, size = self.aside.popleft()
        self.bytes -= size
        return message


class Mailbox:
    """Messages, in the order in which they came, each with the prompts that it answers: the first and the last of them."""

    def __init__(self, backend: Backend, on_change: Callable[[], None]) -> None:
        self._backend = backend
        self._on_change = on_change
        self._unread: deque[tuple[int, int, Any, int]] = deque()
        self._kept: deque[tuple[Any, int]] = deque()  # came before what is unread, and answers nobody
        self._kept_bytes = 0
        self._readings: WeakSet[Reading] = WeakSet()
        self._changed = WaitQueue()
        self._open: dict[str, int] = {}  # prompts that were sent and not answered, by name
        self._told = False  # whether the CLI says what becomes of prompts
        self._first = self._last = 0  # the prompts that the turn which is on answers, or the last one has
        self._is_on = False
        self.bytes = 0
        self.asked = 0  # prompts that were sent
        self.over = False
        self.error: BaseException | None = None
        self.told = False  # whether anybody was given that

    @property
    def busy(self) -> bool:
        """Whether a prompt was sent that is not answered."""
        return bool(self._open)

    def prompted(self, name: str) -> int:
        """A prompt of this name is sent; returns its number."""
        self.asked += 1
        self._open[name] = self.asked
        self._changed.wake_all()
        return self.asked

    def command(self, name: str, state: str) -> None:
        """What the CLI says of a prompt."""
        self._told = True
        number = self._open.get(name)
        if number is None:
            return
        if state == "started":
            if not self._is_on:
                self._first, self._is_on = number, True
            self._last = max(number, self._first)
        elif state in ("completed", "cancelled"):
            if self._is_on and number == self._first:
                self._end_turn()  # without a result
            elif not (self._is_on and self._first < number <= self._last):
                del self._open[name]  # it never began; those that became part of the turn end with it
        self._changed.wake_all()

    def came(self, message: Any, size: int, *, ends_turn: bool) -> None:
        """The agent has said something."""
        if not self._told and not self._is_on and self._open:
            self._first = self._last = min(self._open.values())
            self._is_on = True
        if self._is_on:
            self._unread.append((self._first, self._last, message, size))
        else:
            self._unread.append((self._last + 1, NOBODY, message, size))  # after the turns so far
        self.bytes += size
        if ends_turn:
            self._end_turn()
        self._changed.wake_all()

    def _end_turn(self) -> None:
        if self._is_on:
            self._is_on = False
            self._open = {
                name: number for name, number in self._open.items() if not self._first <= number <= self._last
            }

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes; `error` is for whoever still waits for something."""
        if not self.over:
            self.over = True
            self.error = error
            self._changed.wake_all()

    def reading(self, turn: int) -> Reading:
        """Somebody begins to read the answer to this prompt."""
        reading = Reading(turn)
        self._readings.add(reading)
        return reading

    async def next_of(self, reading: Reading | None, is_over: Callable[[], bool] = lambda: False) -> Any:
        """The next message that answers this prompt, or of any; None when there is none left and it, or what `is_over` tells of, is over."""
        turn = reading.turn if reading is not None else None
        while True:
            if reading is not None and reading.aside:
                return reading.take()
            if turn is None and self._kept:
                message, size = self._kept.popleft()
                self._kept_bytes -= size
                return message
            while self._unread:
                first, last, message, size = self._unread[0]
                if turn is not None and first > turn:
                    await checkpoint()  # there may be nothing else to wait for in the loop of whoever asks
                    return None
                self._unread.popleft()
                self.bytes -= size
                self._on_change()
                if turn is None:
                    return message
                self._set_aside(first, last, message, size, but=turn)
                if last >= turn:
                    return message
                if last == NOBODY:
                    self._keep(message, size)
            if turn is not None and self._is_answered(turn):
                await checkpoint()
                return None
            if self.over or is_over():
                await checkpoint()
                if self.over and self.error is not None:
                    self.told = True
                    raise self.error
                return None
            await self._changed.wait()

    async def wait_for_prompt(self) -> None:
        """Wait until one was sent, or nothing more comes."""
        while not self.asked and not self.over:
            await self._changed.wait()

    def is_read(self, turn: int) -> bool:
        """Whether this prompt is answered, and nothing of the answer is left to be read."""
        return self._is_answered(turn) and not any(first <= turn <= last for first, last, *_ in self._unread)

    def _is_answered(self, turn: int) -> bool:
        return turn <= self.asked and turn not in self._open.values()

    def _set_aside(self, first: int, last: int, message: Any, size: int, *, but: int) -> None:
        """For those who read the answer to the other prompts; two who read that to the same one share it."""
        for turn, reading in {reading.turn: reading for reading in self._readings}.items():
            if turn != but and first <= turn <= last:
                reading.set_aside(message, size)

    def _keep(self, message: Any, size: int) -> None:
        """It was passed over: whoever reads all messages still gets it, unless that is long ago."""
        self._kept.append((message, size))
        self._kept_bytes += size
        while self._kept_bytes > KEPT:
            self._kept_bytes -= self._kept.popleft()[1]
        self._changed.wake_all()

    def poke(self) -> None:
        """Let those who wait look again."""
        self._changed.wake_all()
