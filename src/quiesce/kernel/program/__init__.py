"""`run`: one program from its start to its exit, and `tree`, what runs in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .entry_point import check_no_loop_runs, run
    from .live_tree import Branch, note_ages, tree
    from .on_asyncio import woken_by_signals
    from .program import Stopped, stop_program

offer()
