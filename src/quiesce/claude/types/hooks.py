"""Hooks: the callbacks that a CLI calls, and how they go over the wire.

The CLI knows a callback by an id, which counts from `hook_0` in the order that the options list them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

from .hook_inputs import HookInput
from .hook_outputs import HookJSONOutput

HookEvent: TypeAlias = Literal[
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "UserPromptSubmit",
    "Stop",
    "SubagentStop",
    "PreCompact",
    "Notification",
    "SubagentStart",
    "PermissionRequest",
]


class HookContext(TypedDict):
    """What a hook is told of its own call."""

    signal: Any | None


HookCallback: TypeAlias = Callable[[HookInput, str | None, HookContext], Awaitable[HookJSONOutput]]


@dataclass
class HookMatcher:
    """Which calls of an event its `hooks` are for: `matcher` is a tool's name, or several as in `"Write|Edit"`; None for all.

    `timeout` is in seconds, and the CLI keeps it. With `on_failure="block"`, a hook that fails blocks what it was asked about.
    """

    matcher: str | None = None
    hooks: list[HookCallback] = field(default_factory=list)
    timeout: float | None = None
    on_failure: Literal["continue", "block"] | None = None


def hooks_on_the_wire(
    hooks: Mapping[HookEvent, list[HookMatcher]] | None,
) -> tuple[dict[str, list[dict[str, Any]]] | None, dict[str, HookCallback]]:
    """The hooks as the initialize request lists them (None if there are none), and the callback behind each id."""
    listed: dict[str, list[dict[str, Any]]] = {}
    callbacks: dict[str, HookCallback] = {}
    for event, matchers in (hooks or {}).items():
        for matcher in matchers:
            ids = [f"hook_{len(callbacks) + place}" for place in range(len(matcher.hooks))]
            callbacks.update(zip(ids, matcher.hooks, strict=True))
            entry: dict[str, Any] = {"matcher": matcher.matcher, "hookCallbackIds": ids}
            if matcher.timeout is not None:
                entry["timeout"] = matcher.timeout
            if matcher.on_failure is not None:
                entry["onFailure"] = matcher.on_failure
            listed.setdefault(event, []).append(entry)
    return listed or None, callbacks


def hook_answer(output: Any) -> dict[str, Any]:
    """What a hook returned, with the names that the CLI reads: `async` and `continue`.

    A hook that returns nothing has failed, which matters if it has `on_failure="block"`: one without an opinion returns an empty dict.
    """
    if not isinstance(output, Mapping):
        raise TypeError(f"a hook must return a dict, if only an empty one, not {type(output).__name__}")
    return {_WIRE_NAMES.get(str(name), str(name)): value for name, value in output.items()}


_WIRE_NAMES = {"async_": "async", "continue_": "continue"}
