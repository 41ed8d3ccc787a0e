"""`own`, `stream`, `remote`: owner tasks for context managers and generators of any library, and for work elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .context_manager_owner import ContextManagerOwner, NotHeld
    from .generator_owner import GeneratorOwner
    from .owned import Held, Owned, check_context_manager, own
    from .remote_work import Remote, remote
    from .session_face import Holding, SessionFace, make_holding, start_holding
    from .started_processes import look_at_processes, stop_orphans, stop_processes
    from .streams import Stream, StreamIterator, fail_closing, forget_failure, is_closing, stream

offer()
