"""`Process`: a child process with all its descendants, and the guard that outlives this program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from . import descendants, guardian, procfs
    from .look_interval import LookInterval
    from .pipe import CHUNK, LARGEST, LineTooLong, PipeClosed, Tail
    from .process import Argv, Process, duplicate_pipes, read_last_output
    from .process_tree import explain_failed_start
    from .procfs import Proc
    from .signal_reader import FROM_TERMINAL, OURS_ALONE, SENT_BY_KERNEL, SignalReader
    from .subreaper import become_subreaper, child_changes, exit_like, signal_of, signal_when_parent_exits
    from .tree_child import TreeChild

offer()
