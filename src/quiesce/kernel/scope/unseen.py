"""What a stop could not look at: so that no report calls clean what nobody has seen.

Two kinds. A process tree, or a block, that has ended notes it for its scope and all owners of that (`note_unseen`): where
/proc does not show every process, one may be left of which nobody knows. And threads that others have started, a
library's `to_thread` whose await was cancelled, are looked for when a report is made of a stop that somebody asked for: it can be
seen that they work for the scope, not when they end.

A scope that lives for months does not keep each of them. That there are some is what counts.
"""

from __future__ import annotations

import sys
from concurrent.futures import thread as executor_threads
from threading import get_ident
from typing import TYPE_CHECKING

from quiesce._lazy import from_above
from quiesce._safe.printed import logger
from quiesce.kernel.base import KERNEL_FOLDER

if TYPE_CHECKING:
    from .lifecycle import ScopeCore

_KEPT = 100
# Without it the stacks of other threads must not be read.
_HAS_GIL = sys.version_info < (3, 13) or sys._is_gil_enabled()
_IDLE = executor_threads._worker.__code__
_told = False


def note_unseen(core: ScopeCore, what: str, why: str) -> None:
    """Have the reports of `core` and its owners say that `what` could not be looked at. The first time, warn of it."""
    global _told
    text = f"{what}: {why}"
    above: ScopeCore | None = core
    while above is not None:
        if len(above.unseen) < _KEPT and text not in above.unseen:
            above.unseen = (*above.unseen, text)
        above = above.parent
    if not _told:
        _told = True
        logger.warning(
            "quiesce cannot see all processes here: %s. Reports name in `unseen` what this concerns", why
        )


def unseen_of(core: ScopeCore) -> tuple[str, ...]:
    """What the report of `core` cannot speak for."""
    if core.reason is None or core.reason.kind == "parent" or not _others_are_busy():
        return core.unseen
    at_work_for = from_above("quiesce.kernel.contain.adopted_thread", "at_work_for")
    return (*core.unseen, *at_work_for(core))


def _others_are_busy() -> bool:
    """Whether another thread is anywhere but where those of the kernel and of executors wait. A microsecond or two, for every stop."""
    us = get_ident()
    return _HAS_GIL and any(
        thread != us
        and (code := frame.f_code) is not _IDLE
        and not code.co_filename.startswith(KERNEL_FOLDER)
        for thread, frame in sys._current_frames().items()
    )
