"""What an agent tells about sessions that its client does not know yet.

A session has no name for the client until `session/new` is answered, and clients are known to hang on updates about a session that they never
heard of. So what an agent tells before that (its modes, its commands) is held back, and follows the answer. If that is an error, there is no such
session, and what is held back is dropped with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.acp.schema import SessionNotification
    from quiesce.kernel.inner import Backend


class Opening:
    """One `session/new` that is not answered yet."""

    __slots__ = ("session_id",)

    def __init__(self) -> None:
        self.session_id: str | None = None  # what it will be answered with


class NewSessions:
    """Which sessions the client knows, and what it is to be told about the others."""

    def __init__(self, send: Callable[[SessionNotification], None]) -> None:
        self.known: set[str] = set()
        self._send = send
        self._openings: set[Opening] = set()
        self._held: list[SessionNotification] = []
        self._failed = False  # whether one that was open while these were told has failed

    @contextmanager
    def opening(self, backend: Backend) -> Iterator[Opening]:
        """For as long as a `session/new` is handled."""
        opening = Opening()
        self._openings.add(opening)
        try:
            yield opening
        finally:
            # Its answer, whatever that is, is sent in this very step; so this comes behind it.
            backend.call_at(backend.now(), partial(self._answered, opening))

    @contextmanager
    def in_use(self, session_id: str) -> Iterator[None]:
        """For as long as something is handled that the client asks about a session. It knows that one; and goes on to, unless this fails."""
        was_known = session_id in self.known
        self.known.add(session_id)
        try:
            yield
        except BaseException:
            if not was_known:
                self.known.discard(session_id)
            raise

    def holds_back(self, note: SessionNotification) -> bool:
        """Whether this is kept for later, as its session may be a new one."""
        if not self._openings or note.session_id in self.known:
            return False
        self._held.append(note)
        return True

    def _answered(self, opening: Opening) -> None:
        self._openings.discard(opening)
        if opening.session_id is not None:
            self.known.add(opening.session_id)
        else:
            self._failed = True
        held, self._held = self._held, []
        for note in held:
            if note.session_id in self.known:
                self._send(note)
            elif self._openings:
                self._held.append(note)
            elif not self._failed:
                self._send(note)
        self._failed = self._failed and bool(self._openings)
