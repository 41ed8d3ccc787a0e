"""For tests: a model that answers from a script and needs no network, and the contract of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .scripted import Answer, ScriptedModel, ScriptExhausted, Turn, call
    from .store_contract import check_store

offer()
