"""What the packages above the kernel may use of it besides its public words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .base import (
        DEFAULT_GRACE,
        EXPIRED,
        OPEN,
        SETTLED,
        FreshWaiter,
        Rung,
        Site,
        Timer,
        Waiter,
        WaitQueue,
        as_reason,
        caller_site,
        check_grace,
        check_seconds,
        is_cancel,
        label_of,
        raise_unchanged,
        site_of,
        users_site,
        without_cancels,
    )
    from .calls import GuardedCall, is_aftermath
    from .contain import AdoptedProcess, leads_to, spawner_of
    from .loops import AsyncioBackend, AsyncioHandle
    from .own import ContextManagerOwner, GeneratorOwner, Owned, StreamIterator, check_context_manager
    from .process import CHUNK, LARGEST, Argv, Tail
    from .program import check_no_loop_runs, note_ages, stop_program
    from .scope import (
        CANCELLED,
        FAILED,
        FINISHED,
        Backend,
        Child,
        OpenScope,
        ScopeCore,
        close_core,
        counts_of,
        current_backend,
        current_core,
        current_node,
        face_of,
        is_trouble,
        listeners,
        log_report,
        reason_of_block,
        root_core,
        stop_asked_for,
        wait_settled,
        when_ended,
        who_waits_for,
    )
    from .threads import Delivery, ThreadChild, call_in_thread, run_in_thread, slots_for

offer()
