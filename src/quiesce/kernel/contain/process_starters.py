"""Which context started which process, as far as an asyncio event loop can tell.

| where | what has a copy of the starter's context |
|---|---|
| asyncio, Python 3.12 and up | the callback that waits for the process's pidfd, in the loop's selector |
| asyncio, Python 3.11 | nothing; the task factory of a containment notes it (`note_start`) |
| uvloop | the process's transport, in the loop's set of processes |

The pipes of a process would say less: a task that reads from one may register it again, in a context of its
own.

The starter of a process that is not found here is unknown: a plain `subprocess.Popen`, a process of another
loop, a system without pidfds.
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
    """The node that started a process, and the object by which the loop knows the process."""

    node: Node | None
    transport: Any  # asyncio's or uvloop's own: `get_pid`, `get_returncode`, `close`
    site: Site | None = None


def known_starts(loop: asyncio.AbstractEventLoop) -> dict[int, Start]:
    """The running processes that were started through `loop`, by pid."""
    if not isinstance(loop, asyncio.BaseEventLoop):
        return _on_uvloop(loop)
    noted = {
        transport.get_pid(): Start(transport._quiesce_start[0], transport, transport._quiesce_start[1])
        for transport in list(_noted_transports)
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
            # As the watcher registers it: pid, pidfd, a callback and its arguments, the transport first.
            pid, *rest = handle._args
            transport = rest[2][0] if len(rest) == 3 and rest[2] else None
            found[pid] = Start(handle._context.get(current_node), transport)
    return found


def _on_uvloop(loop: object) -> dict[int, Start]:
    # uvloop is compiled: its attributes have no names in Python, but the garbage collector knows them.
    found: dict[int, Start] = {}
    for attribute in gc.get_referents(loop):
        for transport in attribute if isinstance(attribute, set) else ():
            if hasattr(transport, "get_returncode") and transport.get_returncode() is None:
                contexts = [part for part in gc.get_referents(transport) if isinstance(part, Context)]
                if len(contexts) == 1:
                    found[transport.get_pid()] = Start(contexts[0].get(current_node), transport)
    return found


# Python 3.11

_noted_transports: WeakSet[Any] = WeakSet()
_CONNECT = BaseSubprocessTransport._connect_pipes.__code__


def note_start(coro: Any, node: Node | None) -> None:
    """Note the starter of a process, if `coro` is that of the task which connects a new process's pipes."""
    if getattr(coro, "cr_code", None) is _CONNECT:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_back is not None and is_machinery(frame):
            frame = frame.f_back
        transport = variables_of(coro.cr_frame)["self"]
        # Not as a `Start`, which has the transport in it: that would be a cycle.
        transport._quiesce_start = node, site_of(frame) if frame is not None else None
        _noted_transports.add(transport)
