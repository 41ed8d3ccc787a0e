"""A closed world: no sockets to connect, no processes to start.

The pure loops refuse what is asked of them; code that goes round them, with a plain `socket` or `subprocess`, is
refused here. Both say so with `RefusedIO`, which the audit turns into a message for the scenario's author.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class RefusedIO(RuntimeError):
    """A scenario went out of the audit's closed world."""


def _connect(self: socket.socket, address: Any) -> Any:
    raise RefusedIO(f"it opens a connection to {_readable(address)}")


def _start(self: subprocess.Popen[Any], args: Any, *more: Any, **options: Any) -> None:
    # What Popen's finaliser looks at.
    self.returncode, self._child_created = 0, False  # type: ignore[attr-defined]
    name = args if isinstance(args, str | bytes) else next(iter(args), "?")
    raise RefusedIO(f"it starts the process {name!s}")


def _readable(address: Any) -> str:
    return ":".join(str(part) for part in address[:2]) if isinstance(address, tuple) else str(address)


@contextmanager
def closed_world() -> Iterator[None]:
    """Refuse connections and processes while it is open."""
    kept_connect, kept_ex, kept_start = (
        socket.socket.connect,
        socket.socket.connect_ex,
        subprocess.Popen.__init__,
    )
    socket.socket.connect = _connect  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = _connect  # type: ignore[method-assign, assignment]
    subprocess.Popen.__init__ = _start  # type: ignore[method-assign]
    try:
        yield
    finally:
        subprocess.Popen.__init__ = kept_start  # type: ignore[method-assign]
        # They are inherited from the C type: the overrides are taken away rather than set back.
        del socket.socket.connect, socket.socket.connect_ex
        assert socket.socket.connect is kept_connect
        assert socket.socket.connect_ex is kept_ex
