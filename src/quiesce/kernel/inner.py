"""What the packages above the kernel may use of it besides its public words.

Nothing else of the kernel is imported from outside, and no private attribute of its objects is used there:
whoever needs something new adds a word here, which says what is meant. Mostly they are of one of these kinds:

- the event loop at hand (`current_backend`), waits (`WaitQueue`) and ends (`when_ended`);
- the core of a scope (`core_of`), children with rules of their own, and what is left when a stop is over;
- bases for what is opened, owned and closed (`Cancellable`, `SessionFace`), and what they hold;
- checks of arguments, reasons and cancellations, as the kernel makes them itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .base import (
        FreshWaiter,
        Site,
        Timer,
        Waiter,
        WaitQueue,
        add_failures,
        as_reason,
        check_grace,
        check_seconds,
        describe,
        failures_of,
        is_cancel,
        label_of,
        raise_unchanged,
        thread_stuck_at,
        users_site,
        variables_of,
        without_cancels,
    )
    from .calls import GuardedCall, is_aftermath
    from .contain import (
        AdoptedTree,
        HeldTrees,
        OpenContainment,
        belongs_to,
        has_in_variable,
        known_starts,
        leave_processes,
        serves_the_program,
        spawner_of,
    )
    from .loops import AsyncioBackend
    from .own import (
        GeneratorOwner,
        Holding,
        Owned,
        SessionFace,
        StreamIterator,
        fail_closing,
        forget_failure,
        is_closing,
        look_at_processes,
        make_holding,
        start_holding,
        stop_orphans,
        stop_processes,
    )
    from .process import (
        FROM_TERMINAL,
        OURS_ALONE,
        SENT_BY_KERNEL,
        SignalReader,
        Tail,
        become_subreaper,
        child_changes,
        descendants,
        duplicate_pipes,
        exit_like,
        explain_failed_start,
        procfs,
        read_last_output,
        signal_of,
        signal_when_parent_exits,
    )
    from .program import check_no_loop_runs, note_ages, stop_program, woken_by_signals
    from .scope import (
        Backend,
        Cancellable,
        Child,
        DelayedCancel,
        OpenScope,
        ScopeCore,
        ask_to_leave,
        bind_scope,
        cancel_without_deadline,
        children_left,
        core_of,
        counts_of,
        current_backend,
        has_lost_its_loop,
        insist,
        is_cleaning_up,
        is_trouble,
        leftovers_in,
        listeners,
        log_report,
        root_scope,
        runs_inside,
        spawn_unnamed,
        stop_asked_for,
        wait_settled,
        when_ended,
        work_with,
    )
    from .threads import call_in_thread, run_in_thread, slots_for

offer()
