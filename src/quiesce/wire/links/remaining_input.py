"""What is already on its way when nobody will send any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quiesce.kernel.inner import LARGEST

from .link import CHUNK

if TYPE_CHECKING:
    from .link import Link


def pass_on_remaining_input(link: Link, read_now: Callable[[], bytes | None]) -> None:
    """Hand on what can be read without waiting: what the other side has said before it went is not lost.

    `read_now` gives `b""` at the end of the stream, None if nothing is there. No more is taken than a pipe can hold: somebody else may have the
    other end too, and write on.
    """
    for _ in range(0, LARGEST, CHUNK):
        if link.receiver is None:
            return
        try:
            data = read_now()
        except OSError:
            return
        if data is None:
            return
        if not data:
            link._tell_end()
            return
        link._tell(data)
