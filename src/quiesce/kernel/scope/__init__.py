"""One scope: its children, its states, its block, how it closes and what its report says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from . import blocked_loop
    from .backend import Backend, Options, current_backend
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
        when_ended,
    )
    from .closing import (
        close_core,
        reason_of_block,
        reason_of_cancel,
        wait_settled,
        who_waits_for,
    )
    from .current import Node, current_node
    from .lifecycle import KEPT_FAILURES, ScopeClosed, ScopeCore
    from .scope import (
        OpenScope,
        Scope,
        current_core,
        current_scope,
        current_token,
        face_of,
        root_core,
        stop_asked_for,
    )
    from .stop_listeners import counts_of, is_trouble, listeners, log_report
    from .unseen import note_unseen

offer()
