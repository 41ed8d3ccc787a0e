"""Calls the methods of an agent or client with messages, and turns their results into messages.

Handlers receive the fields of the request as keyword arguments, under the names of the schema. Entries of
`meta` are passed as well, but never in place of a field, whatever the peer calls them. A handler without
`**kwargs` receives only the arguments that it has parameters for.
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
# A class may inherit from these protocols and implement only a part: an inherited declaration is not an
# implementation.
_DECLARED: Final = {
    fn
    for face in (interfaces.Agent, interfaces.Client)
    for fn in vars(face).values()
    if inspect.isfunction(fn)
}


def decoder(method: str, kind: Any) -> Callable[[Raw], Any]:
    """Return a function that reads the parameters of a method; missing parameters are read as `{}`."""
    return lambda raw: decode(raw or _EMPTY, kind, method=method)


# By message class, collected once.
_arguments: dict[type, tuple[str, ...]] = {}


def fields_of(message: Any) -> dict[str, Any]:
    """Return the fields of a message as keyword arguments."""
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
    """Return `fn` as a function of the message; `arguments_of` takes the message apart."""
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
            # `fn` is bound, so `self` has a value already; a peer must not be able to cause a TypeError with
            # it.
            arguments.pop("self", None)
        if not takes_all:
            arguments = {name: value for name, value in arguments.items() if name in named}
        return fn(**arguments)

    return call


def handler_of(target: object, attribute: str) -> Callable[..., Awaitable[Any]] | None:
    """Return the method that handles this; None if the target has none, or only inherited its declaration."""
    fn: Callable[..., Awaitable[Any]] | None = getattr(target, attribute, None)
    return fn if callable(fn) and getattr(fn, "__func__", None) not in _DECLARED else None


def answer_of(result: Any, method: str, target: object, *, may_be_empty: bool) -> Raw:
    """Return the result of a handler in the form in which it is sent."""
    if isinstance(result, Struct):
        return Raw(encode(result))
    if result is None and may_be_empty:
        return _EMPTY
    if isinstance(result, dict):
        return Raw(encode(result))
    raise RequestError.internal_error(
        {"details": f"the handler of {method} in {type(target).__name__} returned {type(result).__name__}"}
    )
