"""The world on trio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .private_parts import is_resident
    from .world import TrioWorld

offer()
