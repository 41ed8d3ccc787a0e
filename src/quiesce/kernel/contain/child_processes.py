"""The processes that children of a scope start without `Process`: by `subprocess`, anyio, asyncio or trio.

A child that finished has left running what it meant to leave, such as a server that it was to start: that is
not touched. The processes of a child that was stopped are stopped too, with their trees: when the last of the
children that were stopped together has ended, since each has the first chance to end its own; or when the
time for clean-up is over, since a clean-up, or a thread, may be waiting for the very process that does not
end. What does not end even then is named as left in the scope's report.

A process belongs to the child in whose context it was started, as for an owner task (`owner_processes`). But
nothing records that on trio, nor for a plain `subprocess.Popen`; on Python 3.11 only a task factory would,
which costs too much for every turn of every run. There a process belongs to the child that has it in a
variable. So the children are looked at before they are cancelled, while they wait; and when they end, by the
frames that their cancel came through.
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

_LIBRARIES = ("anyio", "asyncio", "trio")  # a class `Process` of one of these is a process


def spawner_of(scope: Scope) -> Callable[..., Handle]:
    """`scope.spawn` for children whose processes are stopped with them, if the system shows those."""
    return ChildProcesses(scope._opened()).spawn if not cannot_look() else scope.spawn


class ChildProcesses(OwnerProcesses):
    """The processes of those children of a scope that are spawned here."""

    __slots__ = ("_finished", "_older", "_running")

    def __init__(self, core: ScopeCore) -> None:
        super().__init__(core)
        self._running: dict[Handle, None] = {}
        self._finished: list[Node] = []  # ended by themselves, before a stop
        self._older = _our_children()  # a variable may also hold a process that was not started here

    @property
    def processes(self) -> OwnerProcesses:
        """Itself: by this name an outer owner recognises that these processes are not its own."""
        return self

    def spawn(self, fn: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None) -> Handle:
        """As `Scope.spawn`."""
        caller = sys._getframe(1)
        handle = self._core.spawn(self._work, (fn, *args), name, (caller.f_code, caller.f_lasti))
        if not handle.done:  # with an eager task factory it may have ended already
            handle._on_stop = self._on_stop
        return handle

    async def _work(self, fn: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        handle: Any = current_node.get()
        self._running[handle] = None
        try:
            return await fn(*args)
        except BaseException as error:
            # What it started after it was cancelled could not be seen by the look before.
            if handle.token.cancelled and descendants.have_any():
                self._note_processes_in(_frames_of(error))
            raise
        finally:
            del self._running[handle]
            handle._on_stop = None  # it refers to us, and we to it: a cycle
            if not handle.token.cancelled:
                self._finished.append(handle)
            elif not self._running:
                self.tell_to_go()

    def _on_stop(self, rung: Rung) -> bool:
        if rung is Rung.CANCEL:
            self.look()
        else:
            self.tell_to_go()
        return False  # it is to be cancelled as well, as any child

    def look(self) -> None:
        """Adopt the processes of the children as nested scopes; nothing is stopped yet."""
        if descendants.have_any():
            for handle in self._running:
                self._note_processes_in(_frames_of_task(getattr(handle, "_task", None)))
        super().look()

    def _note_processes_in(self, frames: Iterator[FrameType]) -> None:
        """Note the processes that are in variables of these frames."""
        processes: Any = self._block_processes()
        try:
            for frame in frames:
                for value in variables_of(frame).values():
                    if _is_process(value):
                        processes.in_variables[value.pid] = value
        except Exception as error:  # objects of other code: they must not break a stop
            processes.stop_looking(error)

    def _block_processes(self) -> BlockProcesses:
        if self._processes is None:
            self._processes = _ProcessesInVariables(self._older, self._loop, since=self._began)
        return self._processes

    def _is_ours(self, node: Node | None) -> bool:
        return super()._is_ours(node) and not any(leads_to(node, finished) for finished in self._finished)


def _our_children() -> frozenset[int]:
    try:
        return frozenset(descendants.ours())
    except OSError:  # no descriptors left; the start times say nearly as much
        return frozenset()


class _ProcessesInVariables(BlockProcesses):
    """Also attributes a process by the variable that it is in."""

    __slots__ = ("in_variables",)

    def __init__(self, older: frozenset[int], loop: Any, since: int) -> None:
        super().__init__("known", loop, since=since)
        self._older = older
        self.in_variables: dict[int, Any] = {}  # by pid

    def _attribute(self, contains: Contains) -> list[tuple[Proc, Start | None, bool | None]]:
        return [
            (proc, Start(None, _PolledProcess(self.in_variables[proc.pid])), True)
            if is_ours is None and proc.pid in self.in_variables
            else (proc, start, is_ours)
            for proc, start, is_ours in super()._attribute(contains)
        ]


class _PolledProcess:
    """A process object in place of a transport. No task waits for it any more: polling reaps it."""

    __slots__ = ("_process",)

    def __init__(self, process: Any) -> None:
        self._process = process

    def get_returncode(self) -> int | None:
        process = self._process
        returncode: int | None = process.poll() if hasattr(process, "poll") else process.returncode
        return returncode

    def close(self) -> None:
        """Nothing: the pipes belong to the code that has the process."""


def _frames_of_task(task: Any, seen: set[Any] | None = None) -> Iterator[FrameType]:
    """The frames of a waiting task, and of the tasks that it waits for."""
    seen = set() if seen is None else seen
    if task is None or task in seen:
        return
    seen.add(task)
    on_trio = hasattr(task, "child_nurseries")
    frames = list(awaiting_frames(task.coro if on_trio else task.get_coro()))
    yield from frames
    for inner in _tasks_of_trio(task) if on_trio else _tasks_of_asyncio(task, frames):
        yield from _frames_of_task(inner, seen)


def _tasks_of_trio(task: Any) -> Iterator[Any]:
    for nursery in task.child_nurseries:
        yield from nursery.child_tasks


def _tasks_of_asyncio(task: Any, frames: list[FrameType]) -> Iterator[Any]:
    """The tasks that it awaits, and those of its task groups, which are in a variable meanwhile."""
    yield from awaited_tasks(task)
    for frame in frames:
        for value in variables_of(frame).values():
            if type(value).__name__ == "TaskGroup":  # asyncio's, or anyio's
                yield from list(getattr(value, "_tasks", ()))


def _frames_of(error: BaseException) -> Iterator[FrameType]:
    """The frames that an error came through, and those of the errors in a group."""
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
