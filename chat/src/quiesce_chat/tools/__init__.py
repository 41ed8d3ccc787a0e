"""The tools of the chat's agent: files, search, a shell, Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.inner import offer

if TYPE_CHECKING:
    from .programs import run_program, users_command
    from .toolbox import make_agent, preview_of, title_of

offer()
