"""Models behind Anthropic's official client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .model import AnthropicModel

offer()
