"""Scopes that last for one call: `guarded`, `shielded`, and handlers by id (`Inflight`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .calling_task import owner_of
    from .guarded_call import GuardedCall, guarded, is_aftermath
    from .inflight import DuplicateId, Inflight
    from .shielded_call import shielded

offer()
