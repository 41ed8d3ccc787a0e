"""The unread messages of the agent, by turn.

Prompts are numbered in the order in which they were sent. A turn is the CLI's work on one prompt, up to a
`result`. But the CLI may add a prompt that arrives while a tool runs to the current turn, which then answers
both with one result. So each prompt has a name (its `uuid`), and the CLI reports when it is `queued`,
`started`, and `completed` or `cancelled` (`command_lifecycle`).

A reader of the answer to one prompt gets the messages from the prompt's start to the result of its turn, and
nothing else. It skips unread messages of an interrupted turn. If another reader still wants them, because it
reads that turn, or the same turn for another prompt, they are set aside for it, up to a limit. Messages
without a prompt, as those of a turn that the CLI began by itself, are for the readers of all messages; if a
reader of one answer skips them, they are kept, up to a limit.

Older CLIs do not report what becomes of prompts. They are taken to answer each prompt with a turn of its own,
in order.

Messages are added without waiting for a reader, so that control messages are never held up. If too much is
unread, the session stops reading from the CLI, but not while a control request waits for its answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

from anyio.lowlevel import checkpoint

from quiesce.kernel.inner import WaitQueue

NO_PROMPT: Final = 0  # "the last prompt that this message answers", for one that answers none
KEPT: Final = 4 * 1024 * 1024  # bytes of skipped messages that a reader of all messages may still want
SET_ASIDE: Final = 64 * 1024 * 1024  # bytes of messages that one reader met before the reader they are for


class Reading:
    """A reader of the answer to one prompt, for as long as it is referenced.

    `aside` has the messages for it that readers of other answers met first.
    """

    __slots__ = ("__weakref__", "aside", "bytes", "turn")

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.aside: deque[tuple[Any, int]] = deque()
        self.bytes = 0

    def set_aside(self, message: Any, size: int) -> None:
        """Add a message. Above the limit the oldest are dropped, since the result comes last."""
        self.aside.append((message, size))
        self.bytes += size
        while self.bytes > SET_ASIDE:
            self.bytes -= self.aside.popleft()[1]

    def take(self) -> Any:
        """Take the oldest message."""
        message, size = self.aside.popleft()
        self.bytes -= size
        return message


class Mailbox:
    """Messages in the order of their arrival, each with the first and the last prompt that it answers."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._unread: deque[tuple[int, int, Any, int]] = deque()
        self._kept: deque[tuple[Any, int]] = deque()  # older than all unread ones, and without a prompt
        self._kept_bytes = 0
        # Weak: a reader that was dropped in the middle of its turn must not collect messages any more.
        self._readings: WeakSet[Reading] = WeakSet()
        self._changed = WaitQueue()
        self._open: dict[str, int] = {}  # the numbers of prompts without an answer, by name
        self._reports_prompts = False  # whether the CLI reports what becomes of prompts
        self._first = self._last = 0  # the prompts that the current turn answers, or the last turn answered
        self._in_turn = False
        self.bytes = 0
        self.prompt_count = 0
        self.ended = False
        self.error: BaseException | None = None
        self.error_was_raised = False  # in any reader

    @property
    def busy(self) -> bool:
        """Whether a prompt waits for its answer."""
        return bool(self._open)

    def add_prompt(self, name: str) -> int:
        """Note that a prompt of this name is sent, and return its number."""
        self.prompt_count += 1
        self._open[name] = self.prompt_count
        # Wakes those who wait for a first prompt, to interrupt it.
        self._changed.wake_all()
        return self.prompt_count

    def set_prompt_state(self, name: str, state: str) -> None:
        """Take the CLI's report about a prompt."""
        self._reports_prompts = True
        number = self._open.get(name)
        if number is None:
            return
        if state == "started":
            # During a turn it is a prompt that the CLI has merged into that turn.
            if not self._in_turn:
                self._first, self._in_turn = number, True
            self._last = max(number, self._first)
        elif state in ("completed", "cancelled"):
            if self._in_turn and number == self._first:
                self._end_turn()  # without a result
            elif not (self._in_turn and self._first < number <= self._last):
                # It never started. (A prompt that was added to the current turn stays open until that ends.)
                del self._open[name]
        self._changed.wake_all()

    def add(self, message: Any, size: int, *, ends_turn: bool) -> None:
        """Add a message of the agent."""
        if not self._reports_prompts and not self._in_turn and self._open:
            # An older CLI: the first message after a result begins the turn of the oldest open prompt.
            self._first = self._last = min(self._open.values())
            self._in_turn = True
        if self._in_turn:
            self._unread.append((self._first, self._last, message, size))
        else:
            self._unread.append((self._last + 1, NO_PROMPT, message, size))  # after the turns so far
        self.bytes += size
        if ends_turn:
            self._end_turn()
        self._changed.wake_all()

    def _end_turn(self) -> None:
        if self._in_turn:
            self._in_turn = False
            self._open = {
                name: number for name, number in self._open.items() if not self._first <= number <= self._last
            }

    def end(self, error: BaseException | None) -> None:
        """Take no more messages; readers get the unread ones, then `error`, or the end."""
        if not self.ended:
            self.ended = True
            self.error = error
            self._changed.wake_all()

    def reading(self, turn: int) -> Reading:
        """Begin to read the answer to this prompt."""
        reading = Reading(turn)
        self._readings.add(reading)
        return reading

    async def next_of(self, reading: Reading | None, is_complete: Callable[[], bool] = lambda: False) -> Any:
        """Wait for the next message of this reading, or of any turn; return None at the end.

        The end is the answer of the reading, the end of the session, or that `is_complete()` says so.
        """
        turn = reading.turn if reading is not None else None
        while True:
            if reading is not None and reading.aside:
                return reading.take()
            # These are older than everything unread, so a reader of all messages gets them first.
            if turn is None and self._kept:
                message, size = self._kept.popleft()
                self._kept_bytes -= size
                return message
            while self._unread:
                first, last, message, size = self._unread[0]
                if turn is not None and first > turn:
                    # It belongs to a later turn, so this reader's turn has ended.
                    # A caller that starts a new reading in a loop may have no other await, and must let the
                    # loop run.
                    await checkpoint()
                    return None
                self._unread.popleft()
                self.bytes -= size
                self._on_change()
                if turn is None:
                    return message
                # Before the checks below: a message of a merged turn belongs to this reader and to others.
                self._set_aside(first, last, message, size, but=turn)
                if last >= turn:
                    return message
                if last == NO_PROMPT:
                    self._keep(message, size)
            # The result was read, here or by another reader of this turn; or the prompt never started.
            if turn is not None and self._is_answered(turn):
                await checkpoint()
                return None
            if self.ended or is_complete():
                await checkpoint()
                if self.ended and self.error is not None:
                    self.error_was_raised = True
                    raise self.error
                return None
            await self._changed.wait()

    async def wait_for_prompt(self) -> None:
        """Wait until a prompt was sent, or the session has ended."""
        while not self.prompt_count and not self.ended:
            await self._changed.wait()

    def is_read(self, turn: int) -> bool:
        """Return whether this prompt is answered, and the answer was read to its end."""
        return self._is_answered(turn) and not any(first <= turn <= last for first, last, *_ in self._unread)

    def _is_answered(self, turn: int) -> bool:
        return turn <= self.prompt_count and turn not in self._open.values()

    def _set_aside(self, first: int, last: int, message: Any, size: int, *, but: int) -> None:
        """Set a message aside for readers of other answers; two readers of one answer share it."""
        for turn, reading in {reading.turn: reading for reading in self._readings}.items():
            if turn != but and first <= turn <= last:
                reading.set_aside(message, size)

    def _keep(self, message: Any, size: int) -> None:
        """Keep a skipped message for readers of all messages; the oldest are dropped above the limit."""
        self._kept.append((message, size))
        self._kept_bytes += size
        while self._kept_bytes > KEPT:
            self._kept_bytes -= self._kept.popleft()[1]
        self._changed.wake_all()

    def wake_readers(self) -> None:
        """Let the waiting readers check their conditions again."""
        self._changed.wake_all()
