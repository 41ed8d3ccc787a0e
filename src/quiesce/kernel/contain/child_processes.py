"""The processes that children of a scope start by their own means: by `subprocess`, anyio, asyncio or trio, not by `Process`.

A child that came to its end has left running what it meant to leave, such as a server that it was to start: that is not touched. One that was
stopped has not. What it has started is ended with its tree: when the last of the children that were stopped together has ended, since each has the
first chance to end its own; or when the time to clean up is over, since a clean-up, or a thread, may be waiting for the very process that does
not end. What does not end even then is named as left in the scope's report.

Whose a process is says the context of its start, as for what an owner task holds (`owner_processes`). Nothing keeps that on trio, nor
for a plain `subprocess.Popen`; on Python 3.11 only a task factory would, which is too much for every turn of every run. Then a process
belongs to the child that has it in a variable. So the children are looked at before they are cancelled, while they wait; and when they
end, by the frames that their cancel came through.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from subprocess import Popen
from types import FrameType
from typing import TYPE_CHECKING, Any

from quiesce.kernel.base import Rung, awaiting_frames, variables_of
from quiesce.kernel.process import Proc, descendants
from quiesce.kernel.scope import Node, current_node

from .ancestry import leads_to
from .await_graph import awaited_tasks
from .block_processes import BlockProcesses, Contains, cannot_look
from .owner_processes import OwnerProcesses
from .process_starters import Start

if TYPE_CHECKING:
    from quiesce.kernel.scope import Handle, Scope, ScopeCore

_LIBRARIES = ("anyio", "asyncio", "trio")  # whose `Process` is one


def spawner_of(scope: Scope) -> Callable[..., Handle]:
    """`scope.spawn`, for children whose processes end with them when they are stopped; as far as the system shows its processes."""
    return ChildProcesses(scope._opened()).spawn if not cannot_look() else scope.spawn


class ChildProcesses(OwnerProcesses):
    """The processes of those children of a scope that are spawned here."""

    __slots__ = ("_at_work", "_before", "_finished")

    def __init__(self, core: ScopeCore) -> None:
        super().__init__(core)
        self._at_work: dict[Handle, None] = {}
        self._finished: list[Node] = []  # of themselves, before anybody stopped them
        self._before = _children_of_ours()  # one of these may be in a variable, too

    @property
    def processes(self) -> OwnerProcesses:
        """By which an owner further out knows that these are not its own."""
        return self

    def spawn(self, fn: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None) -> Handle:
        """As `Scope.spawn`."""
        caller = sys._getframe(1)
        handle = self._core.spawn(self._work, (fn, *args), name, (caller.f_code, caller.f_lasti))
        if not handle.done:  # an eager one may be
            handle._on_stop = self._on_stop
        return handle

    async def _work(self, fn: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        handle: Any = current_node.get()
        self._at_work[handle] = None
        try:
            return await fn(*args)
        except BaseException as error:
            if handle.token.cancelled and descendants.have_any():
                self._take_in_hand(_frames_of(error))
            raise
        finally:
            del self._at_work[handle]
            handle._on_stop = None  # it leads back to us, and we to it
            if not handle.token.cancelled:
                self._finished.append(handle)
            elif not self._at_work:
                self.tell_to_go()

    def _on_stop(self, rung: Rung) -> bool:
        if rung is Rung.CANCEL:
            self.look()
        else:
            self.tell_to_go()
        return False  # and cancelled, as any child is

    def look(self) -> None:
        """Take what is theirs for nested scopes; nothing happens to it yet."""
        if descendants.have_any():
            for handle in self._at_work:
                self._take_in_hand(_frames_at_work(getattr(handle, "_task", None)))
        super().look()

    def _take_in_hand(self, frames: Iterator[FrameType]) -> None:
        """Note what stands in variables there."""
        held: Any = self._all()
        try:
            for frame in frames:
                for value in variables_of(frame).values():
                    if _is_process(value):
                        held.in_hands[value.pid] = value
        except Exception as error:  # other people's objects: they must not break a stop
            held.give_up(error)

    def _all(self) -> BlockProcesses:
        if self._processes is None:
            self._processes = _InHands(self._before, self._loop, since=self._began)
        return self._processes

    def _is_ours(self, node: Node | None) -> bool:
        return super()._is_ours(node) and not any(leads_to(node, finished) for finished in self._finished)


def _children_of_ours() -> frozenset[int]:
    try:
        return frozenset(descendants.ours())
    except OSError:  # no descriptor left to look with; start times tell nearly as much
        return frozenset()


class _InHands(BlockProcesses):
    """Knows also what somebody holds."""

    __slots__ = ("in_hands",)

    def __init__(self, before: frozenset[int], loop: Any, since: int) -> None:
        super().__init__("known", loop, since=since)
        self._before = before
        self.in_hands: dict[int, Any] = {}  # by pid

    def _judged(self, contains: Contains) -> list[tuple[Proc, Start | None, bool | None]]:
        return [
            (proc, Start(None, _Polled(self.in_hands[proc.pid])), True)
            if is_ours is None and proc.pid in self.in_hands
            else (proc, start, is_ours)
            for proc, start, is_ours in super()._judged(contains)
        ]


class _Polled:
    """A process as its starter holds it, which nobody waits for any more: it is asked how it ended, so that it is reaped."""

    __slots__ = ("_process",)

    def __init__(self, process: Any) -> None:
        self._process = process

    def get_returncode(self) -> int | None:
        process = self._process
        returncode: int | None = process.poll() if hasattr(process, "poll") else process.returncode
        return returncode

    def close(self) -> None:
        """Its pipes are its holder's."""


def _frames_at_work(task: Any, seen: set[Any] | None = None) -> Iterator[FrameType]:
    """Those of a task that waits, and of the tasks that it waits for."""
    seen = set() if seen is None else seen
    if task is None or task in seen:
        return
    seen.add(task)
    on_trio = hasattr(task, "child_nurseries")
    frames = list(awaiting_frames(task.coro if on_trio else task.get_coro()))
    yield from frames
    for inner in _tasks_of_trio(task) if on_trio else _tasks_of_asyncio(task, frames):
        yield from _frames_at_work(inner, seen)


def _tasks_of_trio(task: Any) -> Iterator[Any]:
    for nursery in task.child_nurseries:
        yield from nursery.child_tasks


def _tasks_of_asyncio(task: Any, frames: list[FrameType]) -> Iterator[Any]:
    """Those that it awaits; and those of its task groups, which stand in a variable while they are waited for."""
    yield from awaited_tasks(task)
    for frame in frames:
        for value in variables_of(frame).values():
            if type(value).__name__ == "TaskGroup":  # asyncio's, or anyio's
                yield from list(getattr(value, "_tasks", ()))


def _frames_of(error: BaseException) -> Iterator[FrameType]:
    """Those that it came through: what was started after the child was cancelled stands in their variables."""
    link = error.__traceback__
    while link is not None:
        yield link.tb_frame
        link = link.tb_next
    for member in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _frames_of(member)


def _is_process(value: object) -> bool:
    kind = type(value)
    return issubclass(kind, Popen) or (
        kind.__name__ == "Process" and str(kind.__module__).partition(".")[0] in _LIBRARIES
    )
