"""Where a program of the tour plays: the stage measures it, draws it, and looks for leftovers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .lanes import Lane
    from .stage import Played, Stage, Watcher
    from .timeline import ASCII, UNICODE, Line, Span, Style, draw, legend, plain

offer()
