"""Holds back an agent's updates about sessions that its client does not know yet.

The client learns a session's id from the answer to `session/new`, and clients are known to hang on updates
about a session that they have never heard of. So the updates that an agent sends before that answer (its
modes, its commands) are held back, and follow the answer. If the answer is an error, the session does not
exist, and its updates are dropped.
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
    """One `session/new` that has not been answered yet."""

    __slots__ = ("session_id",)

    def __init__(self) -> None:
        #: The id in the answer; None until the handler has returned it.
        self.session_id: str | None = None


class NewSessions:
    """Knows which sessions the client has heard of, and holds back the updates about others."""

    def __init__(self, send: Callable[[SessionNotification], None]) -> None:
        self.known: set[str] = set()
        self._send = send
        self._openings: set[Opening] = set()
        self._held_back: list[SessionNotification] = []
        # Whether one of the `session/new` that were open while updates were held back has failed.
        self._any_failed = False

    @contextmanager
    def opening(self, backend: Backend) -> Iterator[Opening]:
        """Cover the handling of one `session/new`."""
        opening = Opening()
        self._openings.add(opening)
        try:
            yield opening
        finally:
            # The answer, whatever it is, is sent in the current step of the event loop. A callback runs after
            # it, so the updates follow the answer. Sending them here would put them before it.
            backend.call_at(backend.now(), partial(self._on_answered, opening))

    @contextmanager
    def in_use(self, session_id: str) -> Iterator[None]:
        """Cover the handling of a request about a session: the client knows it, unless the request fails."""
        was_known = session_id in self.known
        self.known.add(session_id)
        try:
            yield
        except BaseException:
            if not was_known:
                self.known.discard(session_id)
            raise

    def holds_back(self, note: SessionNotification) -> bool:
        """Hold the update back if its session may be a new one; return whether it was held back."""
        if not self._openings or note.session_id in self.known:
            return False
        self._held_back.append(note)
        return True

    def _on_answered(self, opening: Opening) -> None:
        self._openings.discard(opening)
        if opening.session_id is not None:
            self.known.add(opening.session_id)
        else:
            self._any_failed = True
        held_back, self._held_back = self._held_back, []
        for note in held_back:
            if note.session_id in self.known:
                self._send(note)
            elif self._openings:
                self._held_back.append(note)
            # No `session/new` is open any more. If one has failed, the update is taken to be about its
            # session, which does not exist. If none has, it is about a session from elsewhere, which the
            # client may know.
            elif not self._any_failed:
                self._send(note)
        self._any_failed = self._any_failed and bool(self._openings)
