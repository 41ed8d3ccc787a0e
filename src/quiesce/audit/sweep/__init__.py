"""The sweep: stop a scenario at each of its points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .auditing import audit, read_ignores, read_phases
    from .sweep import Progress

offer()
