"""The names of `quiesce.cli` that commands of other distributions may import besides its public ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .base import (
        Parser,
        Terminal,
        detect_terminal,
        error_text,
        fill_closed_descriptors,
        say,
        user_folder,
        warn_if_shared,
    )

offer()
