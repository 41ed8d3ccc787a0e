"""Converts messages from bytes and to bytes.

The usual message takes one pass of msgspec, which rejects anything that its types do not describe exactly.
Only a rejected message is examined again, as plain values (`schema.reading`), and is then either understood
or rejected with the reason. Writing works the same way: msgspec alone, until it meets fields that it cannot
write (`schema.writing`).

Decoders are made when a type is first read, and kept. Whatever a peer sends, nothing here raises anything but
`InvalidMessage`, which is a `ValueError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, overload

import msgspec
from msgspec import Raw

from quiesce.acp.schema.message import ByShape, ExtraFields, Message
from quiesce.acp.schema.reading import InvalidMessage, read
from quiesce.acp.schema.writing import plain

__all__ = ["InvalidMessage", "decode", "encode", "from_dict", "to_dict"]

T = TypeVar("T")


@overload
def decode(data: bytes | Raw, kind: type[T], *, method: str | None = None) -> T: ...
@overload
def decode(data: bytes | Raw, kind: Any, *, method: str | None = None) -> Any: ...
def decode(data: bytes | Raw, kind: Any, *, method: str | None = None) -> Any:
    """Return the message of type `kind` in a piece of JSON; raise `InvalidMessage` if it is not one.

    `kind` is a class of `quiesce.acp.schema`, one of its unions, or either of them `| None`. `method` is only
    used in the error.
    """
    try:
        return (_decoders.get(kind) or _make_decoder(kind))(data)
    except msgspec.ValidationError:
        # Not necessarily wrong: it may have fields or kinds that this release does not know.
        pass
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        _refuse(error, method)
    try:
        value = _decode_plain(data)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        _refuse(error, method)
    return _read(value, kind, method)


def encode(message: Any) -> bytes:
    """Return a message, or plain values with messages in them, as JSON."""
    try:
        return _encode(message)
    except _HasExtraFields:
        return _encode(_plain(message))
    except RecursionError:
        raise ValueError("the message cannot be written: it is nested too deeply") from None


@overload
def from_dict(kind: type[T], value: Any, *, method: str | None = None) -> T: ...
@overload
def from_dict(kind: Any, value: Any, *, method: str | None = None) -> Any: ...
def from_dict(kind: Any, value: Any, *, method: str | None = None) -> Any:
    """Return the message of type `kind` that a dict describes; the dict is as `json.loads` returns it."""
    return _read(value, kind, method)


def to_dict(message: Message) -> dict[str, Any]:
    """Return a message as a dict for `json.dumps`, with its names on the wire."""
    value: dict[str, Any] = msgspec.to_builtins(_plain(message))
    return value


class _HasExtraFields(Exception):
    """Signals that msgspec met fields that it cannot write."""


def _on_unwritable(value: Any) -> Any:
    if isinstance(value, ExtraFields):
        raise _HasExtraFields
    raise TypeError(f"JSON has no representation for {type(value).__name__}: {value!r:.100}")


def _on_unreadable(kind: Any, value: Any) -> Any:
    if isinstance(kind, ByShape):
        return read(value, kind)
    # Reached only if a peer sends a field that happens to have the internal name of ours, such as `(extra)`.
    raise ValueError(f"a message cannot contain {kind.__name__}")


_decoders: dict[Any, Callable[[bytes | Raw], Any]] = {}
_encode = msgspec.json.Encoder(enc_hook=_on_unwritable).encode
_decode_plain = msgspec.json.Decoder().decode


def _make_decoder(kind: Any) -> Callable[[bytes | Raw], Any]:
    try:
        decoder = msgspec.json.Decoder(kind, dec_hook=_on_unreadable).decode
    except TypeError:
        # msgspec cannot tell the members of this union apart. A decoder that rejects everything sends each
        # value to the slow path, so that `decode` needs no special case.
        decoder = msgspec.json.Decoder(_Never).decode
    _decoders[kind] = decoder
    return decoder


class _Never(msgspec.Struct, tag="(never)", forbid_unknown_fields=True):
    """A type that no message has, so that every message takes the slow path."""

    never: None


def _plain(message: Any) -> Any:
    try:
        return plain(message)
    except RecursionError:
        raise ValueError("the message cannot be written: it is nested too deeply") from None


def _read(value: Any, kind: Any, method: str | None) -> Any:
    try:
        return read(value, kind)
    except InvalidMessage as error:
        raise InvalidMessage(error.path, error.problem, error.expected, method) from None


def _refuse(error: Exception, method: str | None) -> NoReturn:
    why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    raise InvalidMessage("", f"cannot be read: {why}", "JSON in UTF-8", method) from None
