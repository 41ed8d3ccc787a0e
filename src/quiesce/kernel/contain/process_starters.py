"""Who has started which process, as far as an asyncio event loop can tell: by the context that the start left somewhere.

| where | what holds a copy of the starter's context |
|---|---|
| asyncio, Python 3.12 and up | the callback that waits for the process's pidfd, in the loop's selector |
| asyncio, Python 3.11 | nothing: the task factory of a containment notes it (`note_start`), by a task that every start makes |
| uvloop | the process's transport, in the loop's set of processes |

The pipes of a process would tell less: whoever reads from one may register it again, in a context of its own.

A start that is not among these (a bare `subprocess.Popen`, another loop's, a system without pidfds) is nobody's: it can
have been anybody's.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from asyncio.base_subprocess import BaseSubprocessTransport
from contextvars import Context
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakSet

from quiesce.kernel.base import Site, is_machinery, site_of, variables_of
from quiesce.kernel.scope import Node, current_node


class Start(NamedTuple):
    """Who has started a process, and by what object the loop knows it."""

    node: Node | None
    transport: Any  # asyncio's or uvloop's own: `get_pid`, `get_returncode`, `close`
    site: Site | None = None


def known_starts(loop: asyncio.AbstractEventLoop) -> dict[int, Start]:
    """The running processes that were started by way of `loop`, by pid."""
    if not isinstance(loop, asyncio.BaseEventLoop):
        return _on_uvloop(loop)
    noted = {
        transport.get_pid(): Start(transport._quiesce_start[0], transport, transport._quiesce_start[1])
        for transport in list(_noted)
        if transport._loop is loop and transport.get_returncode() is None
    }
    return {**_on_asyncio(loop), **noted}


def _on_asyncio(loop: Any) -> dict[int, Start]:
    found: dict[int, Start] = {}
    selector = getattr(loop, "_selector", None)
    for key in list((selector.get_map() or {}).values()) if selector is not None else ():
        handle: Any = key.data[0] if isinstance(key.data, tuple) and key.data else None
        watcher = getattr(getattr(handle, "_callback", None), "__self__", None)
        if type(watcher).__name__.endswith("PidfdChildWatcher"):
            # As the watcher registers it: pid, pidfd, callback and its arguments, of which the transport is one.
            pid, *rest = handle._args
            transport = rest[2][0] if len(rest) == 3 and rest[2] else None
            found[pid] = Start(handle._context.get(current_node), transport)
    return found


def _on_uvloop(loop: object) -> dict[int, Start]:
    # Nothing of this can be reached by a name, but all of it the collector must know.
    found: dict[int, Start] = {}
    for held in gc.get_referents(loop):
        for transport in held if isinstance(held, set) else ():
            if hasattr(transport, "get_returncode") and transport.get_returncode() is None:
                contexts = [part for part in gc.get_referents(transport) if isinstance(part, Context)]
                if len(contexts) == 1:
                    found[transport.get_pid()] = Start(contexts[0].get(current_node), transport)
    return found


# Python 3.11 ------------------------------------------------------------------------------------------------

_noted: WeakSet[Any] = WeakSet()
_CONNECT = BaseSubprocessTransport._connect_pipes.__code__


def note_start(coro: Any, node: Node | None) -> None:
    """A task is being made; if it is the one that connects a new process's pipes, note for whom."""
    if getattr(coro, "cr_code", None) is _CONNECT:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_back is not None and is_machinery(frame):
            frame = frame.f_back
        transport = variables_of(coro.cr_frame)["self"]
        # Not with the transport in it: it would hold itself, and wait for the collector.
        transport._quiesce_start = node, site_of(frame) if frame is not None else None
        _noted.add(transport)
