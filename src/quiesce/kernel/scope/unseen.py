"""What a stop could not check, so that no report says "clean" about something unknown.

There are two kinds:

- Processes. Where /proc does not show every process, one may be left over without our knowledge. A process
  tree or a `contain()` block notes that when it has ended, for its scope and all owners (`note_unseen`).
- Threads that a library started: a `to_thread` whose await was cancelled, for example. It is visible that
  they work for the scope, but not when they will end. They are looked for when a report is made of a stop
  that was requested, not of a block that just ended.

A scope that lives for months does not keep each of them: what counts is that there are some.
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

_MOST_NOTES = 100
# Without the GIL, the stacks of other threads must not be read while they run.
_HAS_GIL = sys.version_info < (3, 13) or sys._is_gil_enabled()
_EXECUTOR_WORKER = executor_threads._worker.__code__
_has_warned = False


def note_unseen(core: ScopeCore, what: str, why: str) -> None:
    """Have the reports of `core` and its owners say that `what` could not be checked. Warns once."""
    global _has_warned
    text = f"{what}: {why}"
    above: ScopeCore | None = core
    while above is not None:
        if len(above.unseen) < _MOST_NOTES and text not in above.unseen:
            above.unseen = (*above.unseen, text)
        above = above.parent
    if not _has_warned:
        _has_warned = True
        logger.warning(
            "quiesce cannot see all processes here: %s. Reports name in `unseen` what this concerns", why
        )


def unseen_of(core: ScopeCore) -> tuple[str, ...]:
    """What the report of `core` could not check. Only needed if there are threads besides the kernel's."""
    if core.reason is None or core.reason.kind == "parent" or not _others_are_busy():
        return core.unseen
    at_work_for = from_above("quiesce.kernel.contain.adopted_thread", "at_work_for")
    return (*core.unseen, *at_work_for(core))


def _others_are_busy() -> bool:
    """Whether another thread does anything but wait: in the kernel, or as an idle worker of an executor."""
    # This costs a microsecond or two. It spares most reports the search for the work of each thread.
    us = get_ident()
    return _HAS_GIL and any(
        thread != us
        and (code := frame.f_code) is not _EXECUTOR_WORKER
        and not code.co_filename.startswith(KERNEL_FOLDER)
        for thread, frame in sys._current_frames().items()
    )
