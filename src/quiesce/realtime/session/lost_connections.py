"""Which lost connections are worth another try: those where the server says "not now", but not "not you".

A WebSocket that breaks, a peer that falls silent, a server that cannot be reached: these may recover in a
moment. A server that closes or refuses gives a code, and only codes that invite another try count. (OpenAI
closes with 1001 when a session has lasted for an hour, and with 3000 when the key is wrong.)
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Final

from quiesce.wire import ConnectionEnded

# Going away, server error, service restart, try again later, bad gateway, timeout.
_CLOSED_FOR_NOW: Final = frozenset((1001, 1011, 1012, 1013, 1014, 3008))
# Request timeout, too early, too many requests. (All 5xx count as well.)
_REFUSED_FOR_NOW: Final = frozenset((408, 425, 429))


def may_come_back(error: BaseException) -> bool:
    """Return whether another try is worthwhile after this error, of connecting or of a connection."""
    if not isinstance(error, OSError):  # the base of ConnectionError and TimeoutError
        return False
    return all(_is_for_now(each) for each in _with_causes(error))


def _is_for_now(error: BaseException) -> bool:
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    if isinstance(error, ConnectionEnded) and error.code is not None:
        return error.code in _CLOSED_FOR_NOW
    status = getattr(getattr(error, "response", None), "status_code", None)  # of a handshake
    return not isinstance(status, int) or status >= 500 or status in _REFUSED_FOR_NOW


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__
