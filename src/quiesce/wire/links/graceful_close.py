"""The end of a socket, so that what was sent last arrives.

The system resets a socket that is closed while something in it is unread, and with that throws away what it has not delivered yet: the very answers for which
a peer takes its time to close. So what is unread is read, for nobody, and a TCP socket is closed when the other side's system has all of it. That is in a
moment, unless the other side does not read; then the `Grace` of the stop bounds the wait.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final

import anyio

from quiesce.kernel.inner import LARGEST

from .link import CHUNK

_UNDELIVERED: Final = 0x5411  # SIOCOUTQ of Linux
_FIRST, _LONGEST = 0.001, 0.05  # seconds between two looks


async def close_gracefully(connected: socket.socket, read_now: Callable[[], bytes | None]) -> None:
    """Until all that was written to the socket is with the other side's system."""
    pause = _FIRST
    while True:
        try:
            for _ in range(0, LARGEST, CHUNK):
                if not read_now():
                    break
            if not _undelivered(connected) or _is_broken(connected):
                return
        except OSError:  # broken: nothing will arrive any more
            return
        await anyio.sleep(pause)
        pause = min(pause * 2, _LONGEST)


def _is_broken(connected: socket.socket) -> bool:
    """Whether the other side has closed it and was told more all the same: that is never delivered."""
    poll = select.poll()
    poll.register(connected, 0)
    return bool(poll.poll(0))


def _undelivered(connected: socket.socket) -> int:
    if sys.platform != "linux" or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return 0  # what is written to a socket in the file system has arrived
    import fcntl

    answer = fcntl.ioctl(connected.fileno(), _UNDELIVERED, b"\0" * 4)
    number: int = struct.unpack("i", answer)[0]
    return number
