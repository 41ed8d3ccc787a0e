"""`to_thread`: sync work in a thread that a scope owns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .idle_threads import IDLE_NAME, Delivery, run_in_thread
    from .limiter import slots_for
    from .thread_call import call_in_thread, to_thread
    from .thread_child import ThreadChild

offer()
