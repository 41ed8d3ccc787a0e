"""`query()`: one run of the CLI, as a stream of messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable
from typing import TYPE_CHECKING, Any, Self

from quiesce import Scope, Stream
from quiesce.claude.words import ClaudeAgentOptions, Message
from quiesce.kernel.inner import (
    GeneratorOwner,
    Site,
    StreamIterator,
    core_of,
    users_site,
    when_ended,
)

from .background_wait import BackgroundWait, seconds_to_wait
from .connect import begin, connected, session_for
from .prompts import feed, user_message
from .session import Session, error_of

if TYPE_CHECKING:
    from quiesce import Grace, Process


class Query(Stream[Message]):
    """The messages of one run. Close it from any task: `async with`, `aclose()` or `close()`."""

    _session: Session
    _iterator: StreamIterator[Message] | None = None

    @property
    def process(self) -> Process:
        """The CLI's process: `pid`, `returncode`, `stderr_tail`. RuntimeError before the iteration begins."""
        process = self._session.process
        if process is None:
            raise RuntimeError("the transport of this query has no process")
        return process

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    def __anext__(self) -> Awaitable[Message]:
        """Return the next message.

        The query keeps the iterator, so that dropping the query has the same effect as exiting an `async
        for`.
        """
        # claude-agent-sdk returns an async generator, so programs call `anext(query(...))` directly.
        if self._iterator is None:
            self._iterator = aiter(self)
        return self._iterator.__anext__()

    async def interrupt(self) -> None:
        """Interrupt the turn. The run goes on to its result, which then does not count as a failure.

        While the CLI is starting, this waits until the first prompt is sent, and interrupts that.
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
    """Run the CLI once, and iterate over its answer to `prompt`, or to a stream of prompts.

    ```python
    options = ClaudeAgentOptions(allowed_tools=["Read"])
    async with query(prompt="What is in this folder?", options=options) as messages:
        async for message in messages:
            print(message)
    # here the CLI, and everything that it started, has exited
    ```

    The CLI starts when you ask for the first message. However you stop the query, the CLI is interrupted
    first, so that the agent does nothing more; then its input ends, and its whole process tree is stopped.
    That is done when `async with` exits, when `aclose()` or `close()` return, and when your own cancellation
    continues. If you exit a bare `async for` early, the interrupt is sent and the process tree is signalled
    before your next line runs.

    The iteration ends when the CLI is idle after its result. It waits for sub-agents in the background, and
    for the turns that they cause, but at most ten minutes from one turn to the next: then it stops the CLI,
    with a warning in the log. The environment variable `CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS` (in
    `options.env`, or of your process) sets another limit, as it does for the CLI itself; 0 means none.

    `transport` replaces the child process; `grace` has the deadlines of a stop, and `scope` is the owner.
    """
    if not isinstance(prompt, str) and not hasattr(type(prompt), "__aiter__"):
        raise TypeError(f"prompt must be a str or an async iterable of messages, not {type(prompt).__name__}")
    chosen = options if options is not None else ClaudeAgentOptions()
    session = session_for(chosen, transport, grace)
    seconds = seconds_to_wait(chosen.env or {})
    # The owner is fixed here, not when the iteration begins, which may be in another task.
    parent = core_of(scope)
    site = users_site()
    source = _messages(session, prompt, seconds, site)
    stream = Query(GeneratorOwner(source, 0, parent, "query", grace, site))
    stream._session = session
    return stream


async def _messages(
    session: Session, prompt: str | AsyncIterable[dict[str, Any]], seconds: float, made_at: Site
) -> AsyncGenerator[Message, None]:
    held = begin(session, made_at)
    await connected(session, held)
    wait = BackgroundWait(session, seconds)
    session.on_message = wait.note
    try:
        if isinstance(prompt, str):
            await session.send(user_message(prompt, ""))
        else:
            when_ended(await feed(session, prompt), wait.update)

        def is_complete() -> bool:
            # A CLI that does not report its state is taken to be idle once every prompt is answered.
            return session.all_sent and not session.mailbox.busy and session.state in (None, "idle")

        while (message := await session.mailbox.next_of(None, is_complete)) is not None:
            yield message
        if session.failed_result is not None and not session.interrupted:
            await held.close()  # first, so that the exit status is known
            process = session.process
            raise error_of(session.failed_result, process.returncode if process is not None else None)
    finally:
        # Also after a `break`: then the owner of this generator runs it, in a task of its own.
        wait.end()
        await held.close()
