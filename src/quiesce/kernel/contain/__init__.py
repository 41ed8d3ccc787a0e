"""`contain`: tasks, threads and processes that other code started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .adopted_process import belongs_to
    from .adopted_thread import at_work_for
    from .child_processes import spawner_of
    from .containment import Containment, contain
    from .open_containment import OpenContainment
    from .owner_processes import OwnerProcesses

offer()
