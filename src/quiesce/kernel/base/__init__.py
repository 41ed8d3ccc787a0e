"""Values that every other room uses: reasons, graces, reports, tokens, and what an event loop must offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .argument_checks import StartedCall, check_function, is_async, warn_of_leak
    from .cancellation import (
        LEAVES_PROGRAM,
        hide_frame,
        is_cancel,
        raise_leaving,
        raise_unchanged,
        without_cancels,
    )
    from .event_loop import EventLoop, FreshWaiter, Timer, Waiter, current_event_loop
    from .grace import CANCEL, COOPERATE, DEFAULT_GRACE, TERMINATE, Grace, Rung, check_grace, check_seconds
    from .kernel_threads import KernelThread, are_there_others
    from .reason import Kind, Reason, as_reason
    from .remote_error import RemoteError
    from .report import Leftover, Outcome, Row, State, StopReport, add_failures, failures_of
    from .rungs import NO_ENDS, STALLED, Ends, after_a_stall, earlier, entered_at, fitted, halved
    from .source_places import (
        KERNEL_FOLDER,
        OUR_MODULES,
        Site,
        awaiting_frames,
        caller_site,
        describe,
        is_machinery,
        label_of,
        site_of,
        stuck_at,
        thread_stuck_at,
        users_site,
        variables_of,
    )
    from .states import EXPIRED, OPEN, SETTLED, STOPPING
    from .token import CancelToken, TokenCancelled, TokenHolder
    from .wait_queue import WaitQueue

offer()
