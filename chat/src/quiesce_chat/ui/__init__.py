"""How a chat is shown: at a terminal, or in plain lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.inner import offer

if TYPE_CHECKING:
    from .input_lines import InputLines, standard_input
    from .plain_face import PlainFace, discard_output
    from .terminal_face import TerminalFace

offer()
