"""quiesce: stop any agent, and know what is left.

The names below are loaded on first use, so that importing one part imports no other.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `python -m quiesce` loads this before it can take a hostile folder off the path: `typing` would be found there
if TYPE_CHECKING:
    from .kernel._child import ChildCancelled as ChildCancelled
    from .kernel._child import Handle as Handle
    from .kernel._contain import Containment as Containment
    from .kernel._contain import contain as contain
    from .kernel._core import ScopeClosed as ScopeClosed
    from .kernel._grace import Grace as Grace
    from .kernel._guarded import guarded as guarded
    from .kernel._inflight import DuplicateId as DuplicateId
    from .kernel._inflight import Inflight as Inflight
    from .kernel._keeper import NotHeld as NotHeld
    from .kernel._overview import Branch as Branch
    from .kernel._overview import tree as tree
    from .kernel._own import Held as Held
    from .kernel._own import own as own
    from .kernel._pipe import LineTooLong as LineTooLong
    from .kernel._pipe import PipeClosed as PipeClosed
    from .kernel._process import Process as Process
    from .kernel._program import Stopped as Stopped
    from .kernel._reason import Reason as Reason
    from .kernel._report import Leftover as Leftover
    from .kernel._report import Outcome as Outcome
    from .kernel._report import StopReport as StopReport
    from .kernel._run import run as run
    from .kernel._scope import Scope as Scope
    from .kernel._scope import current_scope as current_scope
    from .kernel._scope import current_token as current_token
    from .kernel._shielded import shielded as shielded
    from .kernel._stream import Stream as Stream
    from .kernel._stream import stream as stream
    from .kernel._thread import to_thread as to_thread
    from .kernel._token import CancelToken as CancelToken
    from .kernel._token import TokenCancelled as TokenCancelled

__version__ = "0.1.0"

_HOME = {
    "Branch": "kernel._overview",
    "CancelToken": "kernel._token",
    "ChildCancelled": "kernel._child",
    "Containment": "kernel._contain",
    "DuplicateId": "kernel._inflight",
    "Grace": "kernel._grace",
    "Handle": "kernel._child",
    "Held": "kernel._own",
    "Inflight": "kernel._inflight",
    "Leftover": "kernel._report",
    "LineTooLong": "kernel._pipe",
    "NotHeld": "kernel._keeper",
    "Outcome": "kernel._report",
    "PipeClosed": "kernel._pipe",
    "Process": "kernel._process",
    "Reason": "kernel._reason",
    "Scope": "kernel._scope",
    "ScopeClosed": "kernel._core",
    "StopReport": "kernel._report",
    "Stopped": "kernel._program",
    "Stream": "kernel._stream",
    "TokenCancelled": "kernel._token",
    "contain": "kernel._contain",
    "current_scope": "kernel._scope",
    "current_token": "kernel._scope",
    "guarded": "kernel._guarded",
    "own": "kernel._own",
    "run": "kernel._run",
    "shielded": "kernel._shielded",
    "stream": "kernel._stream",
    "to_thread": "kernel._thread",
    "tree": "kernel._overview",
}

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
