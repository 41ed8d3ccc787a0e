"""Closing a socket so that what was sent last arrives.

The system resets a socket that is closed with unread input, and then throws away what it has not delivered
yet: the very answers that the peer waited for before it closed. So the input is read and dropped, and a TCP
socket is closed when the other side's system has received everything. That takes a moment, unless the other
side does not read; then the `Grace` of the stop bounds the wait.

The usual ways do not help. `SO_LINGER` blocks the thread in `close`. `shutdown(SHUT_WR)` and reading to the
end of the stream waits for the other side's program, which may never close.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final

import anyio

from .link import CHUNK, LARGEST

_UNDELIVERED: Final = 0x5411  # SIOCOUTQ of Linux
_FIRST, _LONGEST = 0.001, 0.05  # seconds between two checks


async def wait_delivered(connected: socket.socket, read_now: Callable[[], bytes | None]) -> None:
    """Wait until the other side's system has received all that was written to the socket."""
    pause = _FIRST
    while True:
        try:
            for _ in range(0, LARGEST, CHUNK):
                if not read_now():
                    break
            if not _undelivered(connected) or _is_broken(connected):
                return
        except OSError:  # broken, so nothing will arrive any more
            return
        await anyio.sleep(pause)
        pause = min(pause * 2, _LONGEST)


def _is_broken(connected: socket.socket) -> bool:
    """Whether the other side has closed it and got more after that, which is never delivered."""
    poll = select.poll()
    poll.register(connected, 0)
    return bool(poll.poll(0))


def _undelivered(connected: socket.socket) -> int:
    if sys.platform != "linux" or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return 0  # what is written to a socket in the file system arrives at once
    import fcntl

    answer = fcntl.ioctl(connected.fileno(), _UNDELIVERED, b"\0" * 4)
    number: int = struct.unpack("i", answer)[0]
    return number
