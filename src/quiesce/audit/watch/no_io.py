"""A closed world: no connections, no addresses to look up, no processes to start.

The pure loops refuse what is asked of them; code that goes round them, with a plain `socket` or `subprocess`, is
refused here. Both say so with `RefusedIO`, which the audit turns into a message for the scenario's author.
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
    """A scenario went out of the audit's closed world.

    That it did is noted at once: the scenario may well handle the error, as it would handle an outage, and then what is
    audited would be how it lives without.
    """

    noted: ClassVar[list[str]] = []

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.noted.append(what)


def _connect(self: socket.socket, address: Any) -> Any:
    raise RefusedIO(f"it opens a connection to {_readable(address)}")


def _start(self: subprocess.Popen[Any], args: Any, *more: Any, **options: Any) -> None:
    if _is_look_up(sys._getframe(1)):
        return _popen(self, args, *more, **options)
    # What Popen's finaliser looks at.
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
    return _getaddrinfo(host, *rest, **options)  # a number needs no asking


_getaddrinfo = socket.getaddrinfo


def _is_look_up(frame: FrameType | None) -> bool:
    """Whether the standard library starts a process to look something up, once: where a library is, on what it runs.

    That is not what the scenario does, and where it happens in the first run only, the next ones would differ.
    """
    while frame is not None and frame.f_globals.get("__name__") in ("subprocess", __name__):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in ("ctypes.util", "platform", "uuid")


_popen = subprocess.Popen.__init__
_posix_spawn: Any = getattr(os, "posix_spawn", None)  # which Popen uses from 3.13 on


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


# What is in a module can be replaced and put back. The methods of a socket are inherited from the C type: their
# overrides are taken away again.
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
    """Refuse connections, processes and the end of this one while it is open."""
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in _FUNCTIONS if hasattr(owner, name)]
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
        for owner, name, function in kept:
            setattr(owner, name, function)
