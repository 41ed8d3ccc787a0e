"""The handlers of a peer: by method, a function, and how it takes its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from quiesce import Reason

from .message import plain

T = TypeVar("T")

# Any: parameters and results are whatever the two sides have agreed on.
Handler: TypeAlias = Callable[[Any], Awaitable[Any]]
Decode: TypeAlias = Callable[[Raw], Any]

_EMPTY = Raw(b"{}")


def params_as(kind: type[T]) -> Callable[[Raw], T]:
    """Return a function that reads parameters as a type of msgspec: a Struct, a dataclass, a TypedDict, ...

    ```python
    handlers={"move": Request(move, params_as(Move))}
    ```

    A request whose parameters do not fit is answered with -32602 and the reason.
    """
    decoder = msgspec.json.Decoder(kind)

    def decode(raw: Raw) -> T:
        try:
            return decoder.decode(raw or _EMPTY)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    return decode


@dataclass(frozen=True, slots=True)
class Request:
    """How requests of one method are answered: `await fn(params)` is the result, an `RpcError` the error.

    - `when_cancelled`: the result to answer with if the handler is cancelled and has no answer of its own,
      instead of the error -32800.
    - `answered(result)`: called right after the result was sent, so that messages it sends follow the answer.
    - `stopping(params, reason)`: called when the handler is cancelled, by the peer or by a rule of the
      protocol; not when the whole connection ends.
    - `arrived(params)`: called when the request comes, before any later message is looked at, and before it
      has its turn.
    """

    fn: Handler
    decode: Decode = plain
    when_cancelled: Any = None
    answered: Callable[[Any], object] | None = None
    stopping: Callable[[Any, Reason], object] | None = None
    arrived: Callable[[Any], object] | None = None


@dataclass(frozen=True, slots=True)
class Notification:
    """How notifications of one method are handled.

    Those of one lane are handled one after the other, in the order in which they came; `lane(params)` names
    the lane. With `at_once`, `fn` is a plain function that is called before any later message is looked at;
    it must not block.
    """

    fn: Callable[[Any], Any]
    decode: Decode = plain
    lane: Callable[[Any], Hashable] | None = None
    at_once: bool = False


def requests_of(handlers: Mapping[str, Handler | Request]) -> dict[str, Request]:
    """Return the handlers of requests; raise TypeError for one that cannot be one."""
    return {_name(name): _request(name, given) for name, given in handlers.items()}


def notifications_of(
    handlers: Mapping[str, Callable[[Any], Any] | Notification],
) -> dict[str, Notification]:
    """Return the handlers of notifications; raise TypeError for one that cannot be one."""
    return {_name(name): _notification(name, given) for name, given in handlers.items()}


def _request(name: str, given: Handler | Request) -> Request:
    request = given if isinstance(given, Request) else Request(given)
    _check(name, request.fn, must_be_async=True)
    return request


def _notification(name: str, given: Callable[[Any], Any] | Notification) -> Notification:
    notification = given if isinstance(given, Notification) else Notification(given)
    _check(name, notification.fn, must_be_async=not notification.at_once)
    return notification


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a method is named by a str, not by {name!r}")
    return name


def _check(name: str, fn: Any, *, must_be_async: bool) -> None:
    if not callable(fn):
        raise TypeError(f"the handler of {name!r} must be a function, not {type(fn).__name__}")
    if not must_be_async:
        if inspect.iscoroutinefunction(fn):
            raise TypeError(
                f"the handler of {name!r} is called at once, so it must be a plain function, not an async one"
            )
        return
    if not inspect.isfunction(fn) or inspect.iscoroutinefunction(fn):
        return
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(f"the handler of {name!r} must not be a generator: return the result")
