"""Observes the process around a run: leftover threads, processes and descriptors, and work outside the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .clocks import Clocks
    from .failures import refusal, text_of, where_raised
    from .no_io import RefusedIO, closed_world
    from .outside_work import OutsideWork, Pause, open_descriptors
    from .process_state import Watch, unraisable_sighting
    from .silence import OwnSilence
    from .threads import busy_threads

offer()
