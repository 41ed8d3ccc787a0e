"""Which model `--model` names, and how a command gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.inner import offer

if TYPE_CHECKING:
    from .choice import ModelUnavailable, UnknownModel, calls_tools, describe, note, resolve
    from .no_model import NoLanguageModel

offer()
