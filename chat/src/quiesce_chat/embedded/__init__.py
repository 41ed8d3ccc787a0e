"""A small model on this machine's CPU, served by a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.inner import offer

if TYPE_CHECKING:
    from . import fetch
    from .fetch import FetchProgress
    from .model import EmbeddedModel
    from .weights import WeightsError

offer()
