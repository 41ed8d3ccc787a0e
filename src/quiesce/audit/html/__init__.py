"""The report as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .page import write_html

offer()
