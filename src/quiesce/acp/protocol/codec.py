"""Messages from bytes and into bytes.

The usual message takes one pass of msgspec, which refuses whatever its types do not describe exactly. Only what it refuses is looked at
again, as plain values (`schema._reading`), and either understood after all or refused with the reason. Writing is the same: msgspec alone, until
it comes upon fields that it cannot write (`schema._writing`).

Decoders are made when a type is first read, and kept. Nothing here raises anything but `InvalidMessage`, a ValueError, on account of what a
peer has sent.
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
    """The message of type `kind` in a piece of JSON.

    `kind` is a class of `quiesce.acp.schema`, one of its unions, or either of them `| None`. `method` is for the error alone.
    """
    try:
        return (_decoders.get(kind) or _make_decoder(kind))(data)
    except msgspec.ValidationError:
        pass
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        _refuse(error, method)
    try:
        value = _decode_plain(data)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        _refuse(error, method)
    return _read(value, kind, method)


def encode(message: Any) -> bytes:
    """A message, or plain values with messages in them, as JSON."""
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
    """The message of type `kind` that a dict, as `json.loads` makes it, describes."""
    return _read(value, kind, method)


def to_dict(message: Message) -> dict[str, Any]:
    """A message as a dict for `json.dumps`, with the names that it has on the wire."""
    value: dict[str, Any] = msgspec.to_builtins(_plain(message))
    return value


class _HasExtraFields(Exception):
    """msgspec has come upon fields that it cannot write."""


def _on_unwritable(value: Any) -> Any:
    if isinstance(value, ExtraFields):
        raise _HasExtraFields
    raise TypeError(f"JSON has no way to say {type(value).__name__}: {value!r:.100}")


def _on_unreadable(kind: Any, value: Any) -> Any:
    if isinstance(kind, ByShape):
        return read(value, kind)
    raise ValueError(
        f"no peer can say {kind.__name__}"
    )  # but for a field that happens to be called like ours


_decoders: dict[Any, Callable[[bytes | Raw], Any]] = {}
_encode = msgspec.json.Encoder(enc_hook=_on_unwritable).encode
_decode_plain = msgspec.json.Decoder().decode


def _make_decoder(kind: Any) -> Callable[[bytes | Raw], Any]:
    try:
        decoder = msgspec.json.Decoder(kind, dec_hook=_on_unreadable).decode
    except TypeError:  # a union that msgspec cannot tell apart by itself
        decoder = msgspec.json.Decoder(_Never).decode
    _decoders[kind] = decoder
    return decoder


class _Never(msgspec.Struct, tag="(never)", forbid_unknown_fields=True):
    """What no message is, so that it is read slowly."""

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
