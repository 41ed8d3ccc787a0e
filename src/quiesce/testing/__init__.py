"""For tests of agents: a model that answers from a script and needs no network."""

from __future__ import annotations

from quiesce.testing.scripted import Answer, ScriptedModel, ScriptExhausted, Turn, call

__all__ = ["Answer", "ScriptExhausted", "ScriptedModel", "Turn", "call"]
