"""The pytest plugin: leak verdicts for async tests, and tests that are sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .fixtures import stop_at_async
    from .ledger import ATTRIBUTE, ENTRY, Ledger
    from .settings import MARKERS, Settings, add_options, check_markers, problems_of, sweep_marker
    from .sweep import TestSweep
    from .watching import Watching

offer()
