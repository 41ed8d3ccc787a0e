"""JSON-RPC 2.0 as bytes: reading one message, and writing one.

A message is read once, by msgspec, which leaves `params`, `result` and `error` unread (`Raw`): only the
handler of the message knows their types. A message that cannot be read is read again, slowly, to find out
what is wrong with it and whose answer says so. No function for reading ever raises because of what the peer
has sent, except where its docstring says so.
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
    """A frame that is not a message.

    `id` is the one to answer; UNSET means that there is no answer at all. If it was meant as an answer,
    `call` is the id of the call that it would have answered.
    """

    code: int
    message: str
    id: Id | UnsetType = None
    call: object = UNSET


class _Error(Struct, gc=False):
    code: int
    message: str
    data: Any = None


# The messages that are written. Their tag is the version; parameters that are UNSET are left out.


class _Request(Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int
    method: str
    params: Any


class _Notification(Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    method: str
    params: Any


_NEWLINE: Final = 10  # a number, because `10 in frame` is much quicker than `b"\n" in frame`

_decode = msgspec.json.Decoder(Message).decode
_decode_any = msgspec.json.Decoder().decode
_decode_error = msgspec.json.Decoder(_Error).decode


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r:.100}")


_encode = msgspec.json.Encoder(enc_hook=_refuse).encode


def parse(frame: bytes) -> Message | Malformed | None:
    """Return the message in a frame; None for a blank one."""
    try:
        message = _decode(frame)
        if not frame.isascii():
            str(frame, "utf-8")  # msgspec has not checked the parts that it left unread
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
    """Return what is wrong with a frame that could not be read."""
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
        # It is meant as an answer. Answering an answer could go on for ever between two peers.
        return Malformed(INVALID_REQUEST, str(error), UNSET, value.get("id", UNSET))
    return _invalid(value.get("id", UNSET), str(error))


def _invalid(whose: object, what: str) -> Malformed:
    known = isinstance(whose, (int, float, str)) and not isinstance(whose, bool)
    return Malformed(INVALID_REQUEST, f"Invalid request: {what}", whose if known else None)  # type: ignore[arg-type]


def plain(raw: Raw) -> Any:
    """Return a part of a message as plain values; None if it is missing. ValueError if it is not JSON."""
    if not raw:
        return None
    try:
        return _decode_any(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def error_in(message: Message) -> RpcError:
    """Return the error that an answer carries."""
    try:
        error = _decode_error(message.error)
    except (ValueError, RecursionError) as why:
        return RpcError(INTERNAL_ERROR, f"the peer answered with an error that is not valid: {why}")
    return error_of(error.code, error.message, error.data)


class Writer:
    """Writes messages, each on one line; raises `FrameTooLong` for one longer than `limit` bytes."""

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    # Three times the same, and not one calling another: each is on the path of every message.

    def request(self, id: int, method: str, params: Any) -> bytes:  # noqa: A002
        """Write a request."""
        try:
            frame = _encode(_Request(id, method, UNSET if params is None else params))
        except RecursionError:
            raise _too_deep(method) from None
        return frame if len(frame) <= self.limit and _NEWLINE not in frame else self._checked(frame, method)

    def notification(self, method: str, params: Any) -> bytes:
        """Write a notification."""
        try:
            frame = _encode(_Notification(method, UNSET if params is None else params))
        except RecursionError:
            raise _too_deep(method) from None
        return frame if len(frame) <= self.limit and _NEWLINE not in frame else self._checked(frame, method)

    def result(self, id: Id, result: Any) -> bytes:  # noqa: A002
        """Write the result of a request."""
        try:
            frame = _encode({"jsonrpc": "2.0", "id": id, "result": result})
        except RecursionError:
            raise _too_deep("the answer") from None
        return (
            frame
            if len(frame) <= self.limit and _NEWLINE not in frame
            else self._checked(frame, "the answer")
        )

    def error(self, id: Id, code: int, message: str, data: Any = None) -> bytes:  # noqa: A002
        """Write the error of a request; without what cannot be written, so that there is always an answer."""
        error = {"code": code, "message": message}
        if data is not None:
            error["data"] = data
        try:
            return self._checked(_encode({"jsonrpc": "2.0", "id": id, "error": error}), "the error")
        except (TypeError, ValueError, OverflowError, RecursionError):
            # The data cannot be written, or is too long; or the message has lone surrogates.
            short = {"code": code, "message": str(message)[:1000].encode(errors="replace").decode()}
            return _encode({"jsonrpc": "2.0", "id": id, "error": short})

    def _checked(self, frame: bytes, what: str) -> bytes:
        # msgspec writes no line ends, but a `Raw` that a user passes may contain some.
        if _NEWLINE in frame:
            frame = msgspec.json.format(frame, indent=-1)
        if len(frame) > self.limit:
            raise FrameTooLong(
                f"{what!r} cannot be sent: it is {len(frame)} bytes long, and the limit is {self.limit}"
            )
        return frame


def _too_deep(what: str) -> ValueError:
    return ValueError(f"{what!r} cannot be sent: it is nested too deeply")
