"""From a message to a method of somebody's agent or client, and from what it returns to a message.

Handlers take the fields of the request as keyword arguments, by the names of the schema. Entries of `meta` are passed too, but never instead
of a field, whatever the peer calls them. A handler without `**kwargs` gets what it has parameters for.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Raw, Struct

from quiesce.acp.exceptions import RequestError

from . import interfaces
from .codec import decode, encode

_NOT_ARGUMENTS: Final = {"field_meta", "type"}
_EMPTY: Final = Raw(b"{}")
# Classes may be derived from these, and need not have everything.
_DECLARED: Final = {
    fn
    for face in (interfaces.Agent, interfaces.Client)
    for fn in vars(face).values()
    if inspect.isfunction(fn)
}


def decoder(method: str, kind: Any) -> Callable[[Raw], Any]:
    """How the parameters of a method are read."""
    return lambda raw: decode(raw or _EMPTY, kind, method=method)


_arguments: dict[type, tuple[str, ...]] = {}  # by class, worked out once


def fields_of(message: Any) -> dict[str, Any]:
    """The fields of a message, as arguments."""
    names = _arguments.get(type(message))
    if names is None:
        names = _arguments[type(message)] = tuple(
            name
            for name in message.__struct_fields__
            if name not in _NOT_ARGUMENTS and not name.startswith("_")
        )
    return {name: getattr(message, name) for name in names}


def caller(
    fn: Callable[..., Awaitable[Any]], arguments_of: Callable[[Any], dict[str, Any]] = fields_of
) -> Callable[[Any], Awaitable[Any]]:
    """`fn` as a function of the message."""
    parameters = inspect.signature(fn).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = {
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }

    def call(message: Any) -> Awaitable[Any]:
        arguments = arguments_of(message)
        if message.field_meta:
            arguments = {**message.field_meta, **arguments}
            arguments.pop("self", None)  # a method has that already
        if not takes_all:
            arguments = {name: value for name, value in arguments.items() if name in named}
        return fn(**arguments)

    return call


def handler_of(target: object, attribute: str) -> Callable[..., Awaitable[Any]] | None:
    """The method that handles this; None if the target has none, or has inherited one that only says what it would be."""
    fn: Callable[..., Awaitable[Any]] | None = getattr(target, attribute, None)
    return fn if callable(fn) and getattr(fn, "__func__", None) not in _DECLARED else None


def answer_of(result: Any, method: str, target: object, *, may_be_empty: bool) -> Raw:
    """What a handler returned, as it is sent."""
    if isinstance(result, Struct):
        return Raw(encode(result))
    if result is None and may_be_empty:
        return _EMPTY
    if isinstance(result, dict):
        return Raw(encode(result))
    raise RequestError.internal_error(
        {"details": f"the handler of {method} in {type(target).__name__} returned {type(result).__name__}"}
    )
