"""`query()`: one run of the CLI, as a stream that always ends."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable
from typing import TYPE_CHECKING, Any, Self

from quiesce import Scope, Stream
from quiesce.claude.types import ClaudeAgentOptions, Message
from quiesce.kernel.inner import (
    GeneratorOwner,
    Site,
    StreamIterator,
    current_backend,
    current_core,
    site_of,
    when_ended,
)

from .background_wait import BackgroundWait, seconds_to_wait
from .connect import begin, connected, session_for
from .prompts import feed, user_message
from .session import Session, error_of

if TYPE_CHECKING:
    from quiesce import Grace, Process


class Query(Stream[Message]):
    """The messages of one run: iterate it; close it, from any task, with `async with`, `aclose()` or `close()`."""

    _session: Session
    _iterator: StreamIterator[Message] | None = None

    @property
    def process(self) -> Process:
        """The CLI's process: `pid`, `returncode`, `stderr_tail`. RuntimeError before the first message is asked for."""
        process: Process | None = getattr(self._session.transport, "process", None)
        if process is None:
            raise RuntimeError("this query runs by a transport that has no process")
        return process

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    def __anext__(self) -> Awaitable[Message]:
        """The next message, by an iterator that it keeps: releasing the query is then as leaving a bare `async for`."""
        if self._iterator is None:
            self._iterator = aiter(self)
        return self._iterator.__anext__()

    async def interrupt(self) -> None:
        """Interrupt the turn; the run goes on to its result, which is then no failure of the run.

        While the CLI is being started this waits until the first prompt is said, and interrupts that.
        """
        await self._session.interrupt()


def query(
    *,
    prompt: str | AsyncIterable[dict[str, Any]],
    options: ClaudeAgentOptions | None = None,
    transport: object = None,
    grace: Grace | None = None,
    scope: Scope | None = None,
) -> Query:
    """Run the CLI once: the messages of the answer to `prompt`, or to all of a stream of prompts.

    ```python
    async with query(prompt="What is in this folder?", options=ClaudeAgentOptions(allowed_tools=["Read"])) as messages:
        async for message in messages:
            print(message)
    # here the CLI, and everything that it has started, is gone
    ```

    It starts with the first message that is asked for. However you stop it, the CLI is interrupted first, so that the agent does nothing more; then its
    input ends, then its whole process tree is ended. At the end of `async with`, after `aclose()`, `close()` and your own cancellation, all that is done
    when control is back. If you leave a bare `async for` early, the interrupt is sent and the tree is signalled before your next line runs.

    It ends by itself when the CLI is idle after its result. Sub-agents that work on in the background, and the turns that they give rise to, are waited for, but
    not longer than ten minutes from one turn to the next: then the CLI is stopped, with a warning in the log. As for the CLI itself, the environment variable
    `CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS` (in `options.env`, or in yours) sets another limit; 0 is none.

    `transport` is another way to a CLI than a child process; `grace` holds the deadlines of its stop, and `scope` is its owner.
    """
    if not isinstance(prompt, str) and not hasattr(type(prompt), "__aiter__"):
        raise TypeError(f"prompt must be a str or an async iterable of messages, not {type(prompt).__name__}")
    chosen = options if options is not None else ClaudeAgentOptions()
    session = session_for(chosen, transport, grace)
    seconds = seconds_to_wait(chosen.env or {})
    parent = scope._opened() if scope is not None else current_core(current_backend())
    site = site_of(sys._getframe(1))
    source = _messages(session, prompt, seconds, site)
    made = Query(GeneratorOwner(source, 0, parent, "query", grace, site))
    made._session = session
    return made


async def _messages(
    session: Session, prompt: str | AsyncIterable[dict[str, Any]], seconds: float, made_at: Site
) -> AsyncGenerator[Message, None]:
    held = begin(session, made_at)
    await connected(session, held)
    wait = BackgroundWait(session, seconds)
    session.on_message = wait.heard
    try:
        if isinstance(prompt, str):
            await session.say(user_message(prompt, ""))
        else:
            when_ended(await feed(session, prompt), wait.look)

        def is_over() -> bool:
            return session.all_said and not session.mailbox.busy and session.state in (None, "idle")

        while (message := await session.mailbox.next_of(None, is_over)) is not None:
            yield message
        if session.failed_result is not None and not session.interrupted:
            await held.close()
            process: Process | None = getattr(session.transport, "process", None)
            raise error_of(session.failed_result, process.returncode if process is not None else None)
    finally:
        wait.end()
        await held.close()
