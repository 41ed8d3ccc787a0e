"""`own` and `stream`: owner tasks for other people's context managers and async generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .context_manager_owner import ContextManagerOwner, NotHeld
    from .generator_owner import GeneratorOwner
    from .owned import Held, Owned, check_context_manager, own
    from .streams import Stream, StreamIterator, stream

offer()
