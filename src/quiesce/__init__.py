"""quiesce: stop any agent, and know what is left.

The names below are loaded on first use, so that importing one part imports no other.
"""

from __future__ import annotations

# Not from `typing`: `python -m quiesce` loads this before it can take a hostile folder off the path, where
# that would be found.
from quiesce._lazy import TYPE_CHECKING, offer

if TYPE_CHECKING:
    from .kernel.base import CancelToken as CancelToken
    from .kernel.base import Grace as Grace
    from .kernel.base import Leftover as Leftover
    from .kernel.base import Outcome as Outcome
    from .kernel.base import Reason as Reason
    from .kernel.base import RemoteError as RemoteError
    from .kernel.base import StopReport as StopReport
    from .kernel.base import TokenCancelled as TokenCancelled
    from .kernel.calls import DuplicateId as DuplicateId
    from .kernel.calls import Inflight as Inflight
    from .kernel.calls import guarded as guarded
    from .kernel.calls import shielded as shielded
    from .kernel.contain import Containment as Containment
    from .kernel.contain import contain as contain
    from .kernel.own import Held as Held
    from .kernel.own import NotHeld as NotHeld
    from .kernel.own import Remote as Remote
    from .kernel.own import Stream as Stream
    from .kernel.own import own as own
    from .kernel.own import remote as remote
    from .kernel.own import stream as stream
    from .kernel.process import LineTooLong as LineTooLong
    from .kernel.process import PipeClosed as PipeClosed
    from .kernel.process import Process as Process
    from .kernel.program import Branch as Branch
    from .kernel.program import Stopped as Stopped
    from .kernel.program import run as run
    from .kernel.program import tree as tree
    from .kernel.scope import ChildCancelled as ChildCancelled
    from .kernel.scope import Handle as Handle
    from .kernel.scope import Scope as Scope
    from .kernel.scope import ScopeClosed as ScopeClosed
    from .kernel.scope import current_scope as current_scope
    from .kernel.scope import current_token as current_token
    from .kernel.threads import to_thread as to_thread

offer()

__version__ = "0.1.0"
