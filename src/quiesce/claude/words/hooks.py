"""Hooks: the callbacks that a CLI calls, and their form in its protocol.

The CLI knows a callback by an id: `hook_0`, `hook_1`, ... in the order of the options.
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
    """What a hook learns about its own call: `signal` is the token that is cancelled with it."""

    signal: Any | None


HookCallback: TypeAlias = Callable[[HookInput, str | None, HookContext], Awaitable[HookJSONOutput]]


@dataclass
class HookMatcher:
    """Hooks for some calls of an event.

    `matcher` is the name of a tool, or several as in `"Write|Edit"`; None matches all. `timeout` is in
    seconds, and the CLI enforces it. With `on_failure="block"`, a hook that fails blocks what it was asked
    about.
    """

    matcher: str | None = None
    hooks: list[HookCallback] = field(default_factory=list)
    timeout: float | None = None
    on_failure: Literal["continue", "block"] | None = None


def hooks_on_the_wire(
    hooks: Mapping[HookEvent, list[HookMatcher]] | None,
) -> tuple[dict[str, list[dict[str, Any]]] | None, dict[str, HookCallback]]:
    """Return the hooks for the initialize request (None if there are none), and the callbacks by id."""
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
    """Return what a hook returned, with the names that the CLI reads: `async` and `continue`.

    A hook that returns nothing has failed, which matters if it has `on_failure="block"`: one without an
    opinion returns an empty dict.
    """
    if not isinstance(output, Mapping):
        raise TypeError(f"a hook must return a dict, if only an empty one, not {type(output).__name__}")
    return {_WIRE_NAMES.get(str(name), str(name)): value for name, value in output.items()}


_WIRE_NAMES = {"async_": "async", "continue_": "continue"}
