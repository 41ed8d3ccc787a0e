"""A text for the instructions of agents that hand over to each other."""

from __future__ import annotations

__all__ = ["RECOMMENDED_PROMPT_PREFIX", "prompt_with_handoff_instructions"]

RECOMMENDED_PROMPT_PREFIX = (
    "You are one of several agents that answer the user together. Each has its own instructions and tools. "
    "If another agent is better suited, hand the conversation over to it: call the function whose name begins "
    "with `transfer_to_`. The user sees one assistant: do not mention handoffs, and do not announce them."
)
"""Tells an agent what a handoff is; put it in front of your own instructions."""


def prompt_with_handoff_instructions(prompt: str) -> str:
    """Your instructions, with that text in front of them."""
    return f"{RECOMMENDED_PROMPT_PREFIX}\n\n{prompt}"
