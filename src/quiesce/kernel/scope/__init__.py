"""One scope: its children, its states, its block, how it closes and what its report says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from . import blocked_loop
    from .backend import Backend, current_backend
    from .block import BlockTask
    from .blocked_loop import BLOCKED_AFTER
    from .child import (
        CANCELLED,
        FAILED,
        FINISHED,
        PENDING,
        RUNNING,
        Child,
        ChildCancelled,
        ChildState,
        Handle,
        at_loop_end,
        when_ended,
    )
    from .closable import Cancellable, Closable
    from .closing import (
        close_core,
        reason_of_block,
        reason_of_cancel,
        wait_settled,
        who_waits_for,
    )
    from .current import Node, current_node, work_with
    from .delayed_cancel import DelayedCancel, ask_to_leave, cancel_without_deadline, insist
    from .failures import KEPT_FAILURES
    from .lifecycle import ScopeClosed, ScopeCore
    from .remains import children_left, has_lost_its_loop, leftovers_in, runs_inside
    from .scope import (
        OpenScope,
        Scope,
        bind_scope,
        core_of,
        current_core,
        current_scope,
        current_token,
        face_of,
        is_cleaning_up,
        root_core,
        root_scope,
        spawn_unnamed,
        stop_asked_for,
    )
    from .stop_listeners import counts_of, is_trouble, listeners, log_report
    from .unseen import note_unseen

offer()
