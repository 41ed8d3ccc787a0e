"""Which response is active, and which are still to be requested.

A conversation has one response at a time. If another one is wanted while one is active or requested, it waits
until that has ended; several wishes for "any answer" share one response. The server may begin a response by
itself at any time, because the user has spoken. A request that crosses with that is refused, and made again.

An interrupt concerns everything that was wanted up to then. What was not sent yet is not sent. A request that
was sent, and has no response yet, is cancelled and silenced as soon as its response begins. What is wanted
afterwards is requested as usual.

Responses outside of the conversation (`conversation: "none"`) do not take turns: they neither wait nor make
others wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.agents import UserError
from quiesce.realtime.words import RecentSet, forget_oldest

from .client_events import encode, response_cancel

if TYPE_CHECKING:
    from .server_events import Response, ServerError

ANOTHER_IS_ON = "conversation_already_has_active_response"
NONE_IS_ON = "response_cancel_not_active"

TRIES = 3
"""How often a request is repeated at once: if an ended response was in its way, or the server failed."""

REMEMBERED = 32
"""How many sent requests are remembered, and how many cancels."""


@dataclass(slots=True, eq=False)
class Request:
    """A response that is wanted."""

    frame: bytes
    event_id: str
    number: int  # requests are numbered in the order in which they were wanted
    is_plain: bool  # any answer will do
    tries: int = 0
    is_stopped: bool = False  # interrupted after it was sent, so it is not repeated


class Responses:
    """The responses of one connection."""

    def __init__(self) -> None:
        self.active = False
        self.id: str | None = None  # of the active one, if the server has sent it
        self.silenced = RecentSet()  # their audio is not played any more
        self.stopped = RecentSet()  # interrupted: they call no tools any more
        self._wanted: list[Request] = []
        self._requested: Request | None = None  # sent, and without an answer so far
        # Sent, and perhaps refused: there was an error, but the server did not say for which event.
        self._doubtful: Request | None = None
        # The last ones that were sent: they may have crossed with others, and still be refused.
        self._sent: dict[str, Request] = {}
        self._cancels: dict[str, None] = {}  # event ids of the last cancels
        self._cancel_event: str | None = None  # the event id of the active response's cancel
        self._previous: str | None = None  # the id of the response before
        self._outside: dict[str, bool] = {}  # active ones outside of the conversation: whether cancelled
        self._requested_outside: list[str] = []  # event ids
        self._count = 0  # of event ids and requests

    def is_active(self, response_id: str | None = None) -> bool:
        """Return whether this response is active; None: whether the conversation has an active one."""
        if response_id in self._outside:
            return True
        return self.active and (response_id is None or self.id is None or response_id == self.id)

    def is_outside(self, response_id: str) -> bool:
        """Return whether this response is outside of the conversation."""
        return response_id in self._outside

    # Requesting

    def want(self) -> list[bytes]:
        """Want any answer; return the frames to send now."""
        # Several wishes for any answer share one response, unless a response of a certain kind comes between.
        if not (self._wanted and self._wanted[-1].is_plain):
            self._wanted.append(self._request({"type": "response.create"}, is_plain=True))
        return self._next()

    def want_this(self, message: Mapping[str, Any]) -> list[bytes]:
        """Want a response of a certain kind, given as a whole `response.create`."""
        if len(message) == 1:
            return self.want()
        request = self._request(message)
        given = message.get("response")
        if isinstance(given, Mapping) and given.get("conversation") == "none":
            self._requested_outside.append(request.event_id)
            del self._requested_outside[:-REMEMBERED]
            return [request.frame]
        self._wanted.append(request)
        return self._next()

    def _request(self, message: Mapping[str, Any], *, is_plain: bool = False) -> Request:
        event_id = message.get("event_id") or self._event_id()
        if not isinstance(event_id, str):
            raise UserError(f"the 'event_id' of a 'response.create' must be a str, not {event_id!r:.40}")
        self._count += 1
        return Request(encode({**message, "event_id": event_id}), event_id, self._count, is_plain)

    def _next(self) -> list[bytes]:
        if self.active or self._requested is not None or not self._wanted:
            return []
        request = self._requested = self._wanted.pop(0)
        self._sent[request.event_id] = request
        forget_oldest(self._sent, REMEMBERED)
        return [request.frame]

    def _event_id(self) -> str:
        self._count += 1
        return f"quiesce_{self._count}"

    def cancel(self, response_id: str | None = None) -> list[bytes]:
        """Cancel an active response; do nothing if it is not active, or was cancelled before."""
        if response_id is not None and response_id in self._outside:
            was_cancelled, self._outside[response_id] = self._outside[response_id], True
            return [] if was_cancelled else [response_cancel(self._cancel_id(), response_id)]
        if not self.is_active(response_id) or self._cancel_event is not None:
            return []
        self._cancel_event = self._cancel_id()
        return [response_cancel(self._cancel_event, response_id or self.id)]

    def _cancel_id(self) -> str:
        event_id = self._event_id()
        self._cancels[event_id] = None
        forget_oldest(self._cancels, REMEMBERED)
        return event_id

    def stop_wanted(self) -> None:
        """Drop all that is wanted; requests that were sent are cancelled when their response begins."""
        self._wanted.clear()
        for request in self._sent.values():
            request.is_stopped = True
        if self._doubtful is not None:
            self._doubtful.is_stopped = True

    def begins_by_itself(self) -> None:
        """Note that the server will begin a response by itself: the doubtful request was refused, then."""
        self._doubtful = None

    def stop(self, response_id: str) -> list[bytes]:
        """Cancel a response that goes on although it was interrupted, and the server should have ended it."""
        return self.cancel(response_id) if response_id in self.stopped else []

    # Events of the server

    def created(self, response: Response) -> list[bytes]:
        """Take note of a response that has begun; return the frames to send."""
        # A server may leave `conversation_id` out (UNSET); only null means "outside".
        if response.id is not None and response.conversation_id is None and self._requested_outside:
            del self._requested_outside[0]
            self._outside[response.id] = False
            return []
        # A response may have begun although an error made its request look refused.
        request = self._requested or self._doubtful
        is_stopped = request is not None and request.is_stopped
        self.active, self.id = True, response.id
        self._requested = self._doubtful = self._cancel_event = None
        if not is_stopped:
            return []
        if response.id is not None:
            self.stopped.add(response.id)
            self.silenced.add(response.id)
        return self.cancel(response.id)

    def done(self, response: Response) -> list[bytes]:
        """Take note of a response that has ended; return the frames to send, such as the next request."""
        if response.id is not None:
            self.silenced.discard(response.id)
            self.stopped.discard(response.id)
            if response.id in self._outside:
                del self._outside[response.id]
                return []
        if not self.active:
            self._requested = self._doubtful = None  # the server left out that it had begun
        elif not self.is_active(response.id):
            return []  # another one is active
        return self._free(response.id)

    def _free(self, ended: str | None) -> list[bytes]:
        self.active, self.id, self._cancel_event, self._previous = False, None, None, ended
        return self._next()

    def is_late_cancel(self, error: ServerError) -> bool:
        """Return whether the error only says that a response which we cancelled had already ended."""
        return error.code == NONE_IS_ON and error.event_id in self._cancels

    def refused(self, error: ServerError) -> list[bytes]:
        """Take an error of the server, which may be about a request; return the frames to send."""
        # Our cancel found no response, so the one that we took for active has ended.
        if error.code == NONE_IS_ON and self.active and self._cancel_event == error.event_id is not None:
            return self._free(self.id)
        if error.event_id in self._requested_outside:
            self._requested_outside.remove(error.event_id)
            return []
        request = self._request_of(error)
        if request is None:
            return []
        self._sent.pop(request.event_id, None)
        if self._requested is request:
            self._requested = None
        if error.code == ANOTHER_IS_ON:
            self._request_again(request, error)
        elif _has_failed(error) and request.tries < TRIES and not request.is_stopped:
            request.tries += 1
            self._wanted.insert(0, request)
        elif error.event_id is None:
            self._doubtful = request
        # Otherwise the user gets the error: to repeat the request would not help.
        return self._next()

    def _request_of(self, error: ServerError) -> Request | None:
        if error.event_id is not None:
            return self._sent.get(error.event_id)
        if self._sent and error.code == ANOTHER_IS_ON:
            return next(reversed(self._sent.values()))
        # It may be about something else. But to wait for an answer that never comes would be worse than to
        # request too early: that is refused, and then requested again.
        return self._requested

    def _request_again(self, request: Request, error: ServerError) -> None:
        # Back to its old place: later requests must not overtake it.
        place = sum(1 for other in self._wanted if other.number < request.number)
        is_needless = request.is_stopped or (
            request.is_plain and any(other.is_plain for other in self._wanted[place : place + 1])
        )
        if not is_needless:
            self._wanted.insert(place, request)
        if self.active:
            return
        has_ended = self._previous is not None and self._previous in (error.message or "")
        if has_ended and request.tries < TRIES:
            request.tries += 1
        else:
            self.active, self.id = True, None  # its `response.created` is still on its way


def _has_failed(error: ServerError) -> bool:
    """Return whether the server itself failed: then it names no event, and a repeat may succeed."""
    return error.event_id is None and error.type != "invalid_request_error"
