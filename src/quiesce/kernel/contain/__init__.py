"""`contain`: tasks, threads and processes that other code started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .adopted_process import belongs_to
    from .adopted_thread import at_work_for
    from .adopted_tree import AdoptedTree
    from .busy_threads import has_in_variable, serves_the_program
    from .child_processes import spawner_of
    from .containment import Containment, contain, leave_processes
    from .held_trees import HeldTrees
    from .open_containment import OpenContainment
    from .owner_processes import OwnerProcesses
    from .process_starters import known_starts

offer()
