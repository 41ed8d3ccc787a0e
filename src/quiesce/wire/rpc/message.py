"""JSON-RPC 2.0 as bytes: what one line says, and how to say it.

A line is looked at once, by msgspec, which leaves `params`, `result` and `error` as they are (`Raw`): whoever handles the message knows
their type. A line that is not understood is looked at again, slowly, to say what is wrong with it and whose answer that is. Nothing here
ever raises on account of what the peer has sent.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from quiesce.wire.base import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, FrameTooLong, RpcError, error_of

NOTHING: Final = Raw(b"")
NULL: Final = Raw(b"null")

Id = int | float | str | None


class Message(Struct, gc=False):
    """One message of the peer: a request, a notification, or an answer."""

    jsonrpc: str = ""
    id: Id | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw = NOTHING
    result: Raw = NOTHING
    error: Raw = NOTHING


class Malformed(Struct, gc=False):
    """A line that is no message.

    `id` is whom to answer; UNSET means that it gets no answer at all. `call` is what it would have answered, if it was meant as an answer.
    """

    code: int
    message: str
    id: Id | UnsetType = None
    call: object = UNSET


class _Error(Struct, gc=False):
    code: int
    message: str
    data: Any = None


# What is written: the tag is the version, and parameters that are UNSET are left out.


class _Request(Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int
    method: str
    params: Any


class _Notification(Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    method: str
    params: Any


_NEWLINE: Final = 10  # as a number: looking for a byte is much quicker than looking for bytes

_decode = msgspec.json.Decoder(Message).decode
_decode_any = msgspec.json.Decoder().decode
_decode_error = msgspec.json.Decoder(_Error).decode


def _refuse(value: object) -> object:
    raise TypeError(f"JSON has no way to say {type(value).__name__}: {value!r:.100}")


_encode = msgspec.json.Encoder(enc_hook=_refuse).encode


def parse(frame: bytes) -> Message | Malformed | None:
    """What a line says; None for a blank one."""
    try:
        message = _decode(frame)
        if not frame.isascii():
            str(frame, "utf-8")  # what is left raw was not looked at yet
    except (ValueError, RecursionError) as error:
        return _diagnose(frame, error)
    if message.jsonrpc != "2.0" and not message.result and not message.error:
        return _invalid(message.id, 'its "jsonrpc" is not "2.0"')
    if message.method is UNSET and not message.result and not message.error:
        refused = _invalid(message.id, 'it has neither a "method" nor a "result" nor an "error"')
        refused.call = message.id
        return refused
    return message


def _diagnose(frame: bytes, error: Exception) -> Malformed | None:
    """What is wrong with a line that is no message."""
    if not frame.strip():
        return None
    try:
        value = _decode_any(frame)
    except (ValueError, RecursionError) as broken:
        return Malformed(PARSE_ERROR, f"Parse error: {broken}")
    if not isinstance(value, dict):
        what = "batches are not supported" if isinstance(value, list) else "a message is a JSON object"
        return _invalid(UNSET, what)
    if "method" not in value and ("result" in value or "error" in value):
        # An answer: answering that might never end.
        return Malformed(INVALID_REQUEST, str(error), UNSET, value.get("id", UNSET))
    return _invalid(value.get("id", UNSET), str(error))


def _invalid(whose: object, what: str) -> Malformed:
    known = isinstance(whose, (int, float, str)) and not isinstance(whose, bool)
    return Malformed(INVALID_REQUEST, f"Invalid request: {what}", whose if known else None)  # type: ignore[arg-type]


def plain(raw: Raw) -> Any:
    """The plain value of a part of a message; None if it is not there. ValueError if it is no JSON after all."""
    if not raw:
        return None
    try:
        return _decode_any(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def error_in(message: Message) -> RpcError:
    """The error that an answer tells."""
    try:
        error = _decode_error(message.error)
    except (ValueError, RecursionError) as why:
        return RpcError(INTERNAL_ERROR, f"the peer answered with an error that is none: {why}")
    return error_of(error.code, error.message, error.data)


class Writer:
    """Makes lines, none of them longer than `limit` bytes."""

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    # Written out, without a call of one by the other: each is on the path of every message.

    def request(self, id: int, method: str, params: Any) -> bytes:  # noqa: A002
        """A question."""
        try:
            frame = _encode(_Request(id, method, UNSET if params is None else params))
        except RecursionError:
            raise _too_deep(method) from None
        return frame if len(frame) <= self.limit and _NEWLINE not in frame else self._mended(frame, method)

    def notification(self, method: str, params: Any) -> bytes:
        """Something told."""
        try:
            frame = _encode(_Notification(method, UNSET if params is None else params))
        except RecursionError:
            raise _too_deep(method) from None
        return frame if len(frame) <= self.limit and _NEWLINE not in frame else self._mended(frame, method)

    def result(self, id: Id, result: Any) -> bytes:  # noqa: A002
        """An answer."""
        try:
            frame = _encode({"jsonrpc": "2.0", "id": id, "result": result})
        except RecursionError:
            raise _too_deep("the answer") from None
        return (
            frame if len(frame) <= self.limit and _NEWLINE not in frame else self._mended(frame, "the answer")
        )

    def error(self, id: Id, code: int, message: str, data: Any = None) -> bytes:  # noqa: A002
        """An answer that is an error."""
        error = {"code": code, "message": message}
        if data is not None:
            error["data"] = data
        try:
            return self._mended(_encode({"jsonrpc": "2.0", "id": id, "error": error}), "the error")
        except (TypeError, ValueError, OverflowError, RecursionError):
            # Then without what cannot be said, or is too long.
            short = {"code": code, "message": str(message)[:1000].encode(errors="replace").decode()}
            return _encode({"jsonrpc": "2.0", "id": id, "error": short})

    def _mended(self, frame: bytes, what: str) -> bytes:
        """On one line, and not too long."""
        if _NEWLINE in frame:  # of somebody's Raw: JSON itself never has one
            frame = msgspec.json.format(frame, indent=-1)
        if len(frame) > self.limit:
            raise FrameTooLong(
                f"{what!r} cannot be sent: it is {len(frame)} bytes long, and the limit is {self.limit}"
            )
        return frame


def _too_deep(what: str) -> ValueError:
    return ValueError(f"{what!r} cannot be sent: it is nested too deeply")
