"""`quiesce exec -- CMD ...`: run any program so that its whole tree of processes ends when it does.

It has three processes: the command; the guard, its parent, which outlives us (`guard`); and we, in the place in
which the command was to be started (`front`). Nothing here uses asyncio or the kernel's scopes: it has to start
as quickly as a program that does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .command import main
    from .foreground import Foreground
    from .launching import Command, launch
    from .report import name_of_signal
    from .tree import Tree

offer()
