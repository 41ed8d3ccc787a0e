"""The Claude Code CLI as a process: finding it, its command line, and the transport to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .sdk_transport import Transport
    from .transport import CliProcess, transport_for

offer()
