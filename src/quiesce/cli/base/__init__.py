"""What every command uses: argument parsing, the terminal, folders of the user, and whether a file is private."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .file_mode import warn_if_shared
    from .parser import Parser, one_of, split_command
    from .terminal import (
        COLOR_CHOICES,
        Terminal,
        detect_terminal,
        error_text,
        fill_closed_descriptors,
        say,
    )
    from .user_folders import user_folder

offer()
