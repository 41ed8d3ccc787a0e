"""The closed world: no connections, no name lookups, no processes.

The pure loops refuse I/O that goes through them. This module refuses I/O that bypasses the loop, by a plain `socket` or
`subprocess`. Both raise `RefusedIO`, which the audit turns into a message for the author of the scenario.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar


class RefusedIO(RuntimeError):
    """A scenario tried to do I/O in the audit's closed world.

    Creating the error records it in `refusals`, because the scenario may handle it like any outage. The audit would
    then silently examine how the scenario behaves during that outage.
    """

    refusals: ClassVar[list[str]] = []

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.refusals.append(what)


def _connect(self: socket.socket, address: Any) -> Any:
    raise RefusedIO(f"it opens a connection to {_readable(address)}")


def _start(self: subprocess.Popen[Any], args: Any, *more: Any, **options: Any) -> None:
    if _is_look_up(sys._getframe(1)):
        return _popen(self, args, *more, **options)
    # Popen's finaliser reads these, and `__init__` did not get to set them.
    self.returncode, self._child_created = 0, False  # type: ignore[attr-defined]
    name = args if isinstance(args, str | bytes) else next(iter(args), "?")
    raise RefusedIO(f"it starts the process {name!s}")


def _send(self: socket.socket, data: Any, *rest: Any) -> Any:
    raise RefusedIO(f"it sends to {_readable(rest[-1])}" if rest else "it sends a datagram")


def _look_up(host: Any, *rest: Any, **options: Any) -> Any:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise RefusedIO(f"it looks up the address of {host}") from None
    return _getaddrinfo(host, *rest, **options)  # a numeric address needs no lookup


_getaddrinfo = socket.getaddrinfo


def _is_look_up(frame: FrameType | None) -> bool:
    """Whether the standard library starts this process to look something up, such as the path of a shared library.

    The scenario did not ask for that. The standard library caches some of the answers, so a refusal would also make the
    first run differ from the later ones.
    """
    while frame is not None and frame.f_globals.get("__name__") in ("subprocess", __name__):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in ("ctypes.util", "platform", "uuid")


_popen = subprocess.Popen.__init__
# Popen calls it from 3.13 on.
_posix_spawn: Any = getattr(os, "posix_spawn", None)


def _system(command: Any) -> Any:
    raise RefusedIO(f"it starts the process {command!s}")


def _spawn(path: Any, *rest: Any, **options: Any) -> Any:
    if _is_look_up(sys._getframe(1)):
        return _posix_spawn(path, *rest, **options)
    raise RefusedIO(f"it starts the process {path!s}")


def _fork() -> Any:
    raise RefusedIO("it forks")


def _exit(status: int) -> Any:
    raise RefusedIO(f"it ends the process with os._exit({status})")


# These attributes can be replaced and restored. The methods of a socket are inherited from the C type, so for them an
# override is set on the Python class and deleted again.
_FUNCTIONS: tuple[tuple[Any, str, Any], ...] = (
    (socket, "getaddrinfo", _look_up),
    (os, "system", _system),
    (os, "posix_spawn", _spawn),
    (os, "fork", _fork),
    (os, "_exit", _exit),
    (subprocess.Popen, "__init__", _start),
)
_METHODS = {"connect": _connect, "connect_ex": _connect, "sendto": _send}


def _readable(address: Any) -> str:
    return ":".join(str(part) for part in address[:2]) if isinstance(address, tuple) else str(address)


@contextmanager
def closed_world() -> Iterator[None]:
    """Refuse connections, child processes and `os._exit` inside the block."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in _FUNCTIONS if hasattr(owner, name)]
    for owner, name, refusal in _FUNCTIONS:
        if hasattr(owner, name):
            setattr(owner, name, refusal)
    for name, refusal in _METHODS.items():
        setattr(socket.socket, name, refusal)
    try:
        yield
    finally:
        for name in _METHODS:
            delattr(socket.socket, name)
        for owner, name, function in originals:
            setattr(owner, name, function)
