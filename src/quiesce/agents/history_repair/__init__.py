"""`repair`: a history that its provider accepts, whatever stopped the run that wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .formats import repair
    from .items import repair_items
    from .pairs import MISSING

offer()
