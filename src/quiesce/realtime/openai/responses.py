"""Which response is on, and which are still to be asked for.

A conversation has one response at a time. Who wants another one while one is on, or was asked for, waits until it has ended; those who want
just any answer get one together. The server may begin a response by itself at any time (the user has spoken): a request that crosses with
that is refused, and made again.

Who says stop means all that was wanted until then: what was not sent yet is not sent any more, and one that was sent and of which nothing was
heard is ended, in silence, as soon as it begins. What is wanted afterwards is asked for as ever.

Responses outside of the conversation (`conversation: "none"`) are nobody's turn: they neither wait nor let anybody wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.agents import UserError

from .bounded_memory import RecentSet, forget_oldest
from .client_events import encode, response_cancel

if TYPE_CHECKING:
    from .server_events import Response, ServerError

ANOTHER_IS_ON = "conversation_already_has_active_response"
NONE_IS_ON = "response_cancel_not_active"

TRIES = 3
"""How often a request is made again at once: one that was refused for a response which has ended, or that the server has failed on."""

REMEMBERED = 32
"""How many requests are remembered that were sent, until something is heard of them. As many cancels."""


@dataclass(slots=True, eq=False)
class Request:
    """A response that somebody wants."""

    frame: bytes
    event_id: str
    number: int  # in the order in which they were wanted
    is_plain: bool  # any answer will do
    tries: int = 0
    is_stopped: bool = False  # somebody has said stop since it was sent: it is not made again


class Responses:
    """The responses of one connection."""

    def __init__(self) -> None:
        self.on = False
        self.id: str | None = None  # of the one that is on, if the server has told
        self.silenced = RecentSet()  # what they say is not played any more
        self.stopped = RecentSet()  # somebody has said stop: they call no tools any more
        self._wanted: list[Request] = []
        self._asked: Request | None = None  # sent, and nothing was heard of it
        self._doubted: Request | None = (
            None  # sent, and perhaps refused: the server did not say what was wrong
        )
        # The last ones that were sent: they may have crossed with others, and be refused yet.
        self._sent: dict[str, Request] = {}
        self._cancels: dict[str, None] = {}  # ids of the last events that were to end a response
        self._cancelled_as: str | None = None  # the id of the event that ends the one that is on
        self._ended: str | None = None  # the one that was on before
        self._outside: dict[str, bool] = {}  # those that are on, and whether they were told to end
        self._asked_outside: list[str] = []  # ids of events
        self._count = 0  # of what was sent

    def is_on(self, response_id: str | None = None) -> bool:
        """Whether this one goes on; None: whether any does in the conversation."""
        if response_id in self._outside:
            return True
        return self.on and (response_id is None or self.id is None or response_id == self.id)

    def is_outside(self, response_id: str) -> bool:
        """Whether it is no part of the conversation."""
        return response_id in self._outside

    # What is wanted

    def want(self) -> list[bytes]:
        """An answer is wanted."""
        if not (self._wanted and self._wanted[-1].is_plain):
            self._wanted.append(self._request({"type": "response.create"}, is_plain=True))
        return self._next()

    def want_this(self, message: Mapping[str, Any]) -> list[bytes]:
        """A response of a certain kind is wanted: a whole `response.create`."""
        if len(message) == 1:
            return self.want()
        request = self._request(message)
        given = message.get("response")
        if isinstance(given, Mapping) and given.get("conversation") == "none":
            self._asked_outside.append(request.event_id)
            del self._asked_outside[:-REMEMBERED]
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
        if self.on or self._asked is not None or not self._wanted:
            return []
        request = self._asked = self._wanted.pop(0)
        self._sent[request.event_id] = request
        forget_oldest(self._sent, REMEMBERED)
        return [request.frame]

    def _event_id(self) -> str:
        self._count += 1
        return f"quiesce_{self._count}"

    def cancel(self, response_id: str | None = None) -> list[bytes]:
        """End one that is on. Nothing happens if it is not on, or was told to end before."""
        if response_id is not None and response_id in self._outside:
            was_told, self._outside[response_id] = self._outside[response_id], True
            return [] if was_told else [response_cancel(self._cancel_id(), response_id)]
        if not self.is_on(response_id) or self._cancelled_as is not None:
            return []
        self._cancelled_as = self._cancel_id()
        return [response_cancel(self._cancelled_as, response_id or self.id)]

    def _cancel_id(self) -> str:
        event_id = self._event_id()
        self._cancels[event_id] = None
        forget_oldest(self._cancels, REMEMBERED)
        return event_id

    def stop_wanted(self) -> None:
        """Somebody has said stop: nothing that was wanted until now is asked for any more, and what was asked for ends when it begins."""
        self._wanted.clear()
        for request in self._sent.values():
            request.is_stopped = True
        if self._doubted is not None:
            self._doubted.is_stopped = True

    def begins_by_itself(self) -> None:
        """The server is about to begin a response that nobody has asked for; one that was asked for would have begun before."""
        self._doubted = None

    def stop(self, response_id: str) -> list[bytes]:
        """It goes on though somebody has said stop, and the server was to end it: end it."""
        return self.cancel(response_id) if response_id in self.stopped else []

    # What came of it

    def created(self, response: Response) -> list[bytes]:
        """One is on."""
        if response.id is not None and response.conversation_id is None and self._asked_outside:
            del self._asked_outside[0]
            self._outside[response.id] = False
            return []
        request = self._asked or self._doubted
        is_stopped = request is not None and request.is_stopped
        self.on, self.id = True, response.id
        self._asked = self._doubted = self._cancelled_as = None
        if not is_stopped:
            return []
        if response.id is not None:
            self.stopped.add(response.id)
            self.silenced.add(response.id)
        return self.cancel(response.id)

    def done(self, response: Response) -> list[bytes]:
        """One has ended: the next one can be asked for."""
        if response.id is not None:
            self.silenced.discard(response.id)
            self.stopped.discard(response.id)
            if response.id in self._outside:
                del self._outside[response.id]
                return []
        if not self.on:
            self._asked = self._doubted = None  # the server has not said that it began
        elif not self.is_on(response.id):
            return []  # it is another one that is on
        return self._free(response.id)

    def _free(self, ended: str | None) -> list[bytes]:
        self.on, self.id, self._cancelled_as, self._ended = False, None, None, ended
        return self._next()

    def is_late_cancel(self, error: ServerError) -> bool:
        """Whether all that was wrong is that a response had ended already which was to be ended here: nobody did anything wrong."""
        return error.code == NONE_IS_ON and error.event_id in self._cancels

    def refused(self, error: ServerError) -> list[bytes]:
        """The server did not like something that it was told; perhaps one of these requests."""
        if error.code == NONE_IS_ON and self.on and self._cancelled_as == error.event_id is not None:
            return self._free(self.id)
        if error.event_id in self._asked_outside:
            self._asked_outside.remove(error.event_id)
            return []
        request = self._is_about(error)
        if request is None:
            return []
        self._sent.pop(request.event_id, None)
        if self._asked is request:
            self._asked = None
        if error.code == ANOTHER_IS_ON:
            self._ask_again(request, error)
        elif _has_failed(error) and request.tries < TRIES and not request.is_stopped:
            request.tries += 1
            self._wanted.insert(0, request)
        elif error.event_id is None:
            self._doubted = request
        # Else it is told as an error: to ask again would not help.
        return self._next()

    def _is_about(self, error: ServerError) -> Request | None:
        if error.event_id is not None:
            return self._sent.get(error.event_id)
        if self._sent and error.code == ANOTHER_IS_ON:
            return next(reversed(self._sent.values()))
        # It may be about something else. To wait for an answer that never comes would be worse than to ask too early: that is refused, and
        # asked for again.
        return self._asked

    def _ask_again(self, request: Request, error: ServerError) -> None:
        place = sum(1 for other in self._wanted if other.number < request.number)
        is_in_vain = request.is_stopped or (
            request.is_plain and any(other.is_plain for other in self._wanted[place : place + 1])
        )
        if not is_in_vain:
            self._wanted.insert(place, request)
        if self.on:
            return
        has_ended = self._ended is not None and self._ended in (error.message or "")
        if has_ended and request.tries < TRIES:
            request.tries += 1
        else:
            self.on, self.id = True, None  # one that we are about to be told of


def _has_failed(error: ServerError) -> bool:
    """Whether the server itself is at fault: it does not say which event it was then, and may do better the next time."""
    return error.event_id is None and error.type != "invalid_request_error"
