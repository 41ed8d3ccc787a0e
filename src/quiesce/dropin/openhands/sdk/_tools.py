"""The tool calls of a run, each in a thread that the run owns.

The SDK runs a tool in a thread of a pool. A run that is cancelled leaves it there, or, with several at once,
blocks the event loop until all of them have returned. Here each call is a `to_thread`: it is waited for as
long as the grace allows, and named if it stays.

When the run is stopped, a tool call hears of it in every way that there is, before its thread is waited for:
`current_token()`, the conversation's `cancel_token`, and its `interrupt()`. A run inside it, of a sub-agent,
is interrupted too; the SDK has that pause after its step.
"""

from __future__ import annotations

import _thread
import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from typing import Any

from openhands.sdk.agent.parallel_executor import ParallelToolExecutor
from openhands.sdk.conversation.impl.local_conversation import LocalConversation

from quiesce import current_token, to_thread
from quiesce.kernel.inner import variables_of

from ._runs import calls, current_run

LONGEST_WAIT = 1.0  # seconds between two looks at a tool call that does not end


class ContainedToolExecutor(ParallelToolExecutor):
    """Runs the tool calls of an agent; what it does not replace is the SDK's: locks, errors, the sync path."""

    async def aexecute_batch(
        self,
        action_events: Sequence[Any],
        tool_runner: Any,
        tools: dict[str, Any] | None = None,
        cancel_token: Any = None,
        **options: Any,
    ) -> list[list[Any]]:
        """As the SDK's: at most so many at once as it allows, and the results in the order of the calls."""
        slots = asyncio.Semaphore(max(1, self._max_workers))

        async def call(action: Any) -> list[Any]:
            tool = (tools or {}).get(action.tool_name)
            async with slots:
                return await to_thread(
                    lambda: self._call(action, tool_runner, tool, cancel_token, **options),
                    name=f"tool {action.tool_name}",
                )

        if len(action_events) == 1:
            return [await call(action_events[0])]
        return list(await asyncio.gather(*map(call, action_events)))

    def execute_batch(self, *args: Any, **options: Any) -> list[list[Any]]:
        """As the SDK's; if the run is being stopped, it takes no further step."""
        results = list(super().execute_batch(*args, **options))
        run = current_run.get()
        if run is not None and run.pause is not None and current_token().cancelled:
            # Here, in the thread of the run: a tool that looks at its token may end before `interrupt()`, in
            # another thread, has asked for the lock that the next step takes.
            run.pause()
        return results

    def _call(self, action: Any, tool_runner: Any, tool: Any, cancel_token: Any, **options: Any) -> list[Any]:
        """In the thread of the call."""
        token, has_ended, us = current_token(), threading.Event(), threading.get_ident()

        def stop() -> None:
            if cancel_token is not None:
                cancel_token.cancel()
            aside(_interrupt, tool, us, has_ended)

        def run(action: Any) -> list[Any]:
            if token.cancelled:  # while it waited for the lock of its tool
                return list(self._cancelled_error(action, **options))
            return list(tool_runner(action))

        forget = token.on_cancel(stop)
        try:
            with calls(f"tool {action.tool_name}"):
                return list(self._run_safe(action, run, tool, cancel_token, **options))
        finally:
            forget()
            has_ended.set()


def runs_tools_as_usual(agent: Any) -> bool:
    """Whether it has the SDK's way to run its tools, and none of its own."""
    return type(getattr(agent, "_parallel_executor", None)) is ParallelToolExecutor


def contain_tools(agent: Any) -> None:
    """Have `agent`, which is the conversation's own, run its tools in threads that the runs own."""
    if runs_tools_as_usual(agent):
        theirs = agent._parallel_executor
        agent._parallel_executor = ContainedToolExecutor(theirs._max_workers, theirs._lock_manager)


def aside(fn: Callable[..., object], *args: Any) -> None:
    """Call `fn`, which may block, in a thread that belongs to no run: one that is being stopped has to wait."""
    thread = threading.Thread(target=Context().run, args=(fn, *args), daemon=True)
    # Started in a thread of its own too: we may be in a signal handler, or a finalizer, that has interrupted
    # a start of a thread in this one, and both would need the same lock.
    _thread.start_new_thread(thread.start, ())


def _interrupt(tool: Any, thread: int, has_ended: threading.Event) -> None:
    """Interrupt what runs in a tool call, and in the runs of sub-agents that it starts before it ends."""
    executor = getattr(tool, "executor", None)
    if executor is not None and not has_ended.is_set():
        executor.interrupt()
    interrupted: list[LocalConversation] = []
    seconds = 0.01
    while not has_ended.wait(seconds):
        for conversation in _runs_in(thread):
            if conversation not in interrupted:
                interrupted.append(conversation)
                aside(conversation.interrupt)
        seconds = min(2 * seconds, LONGEST_WAIT)


def _runs_in(thread: int) -> Iterator[LocalConversation]:
    """The conversations that run inside a tool call, in its thread, or in threads that it waits for."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        owner = variables_of(frame).get("self")
        if isinstance(owner, LocalConversation) and frame.f_code.co_name in ("run", "_run"):
            yield owner
        for inner in list(getattr(owner, "_sub_agents", {}).values()):  # of the tool that delegates
            if isinstance(inner, LocalConversation):
                yield inner
        frame = frame.f_back
