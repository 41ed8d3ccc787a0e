"""The five situations of the tour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .catalogue import SITUATIONS, Side, Situation

offer()
