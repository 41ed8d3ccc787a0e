"""`Conversation`, contained: a run has ended when it returns, and a conversation when it is closed.

A run is a contained call (`Call`) of the SDK's `arun`. So is `run()`, in an event loop of the caller's thread:
only an async call to a model can be cut off. Where an agent or its model has a sync method of its own and no
async one to go with it, `run()` is the SDK's own, in a thread that the call owns.

- **`interrupt()`** cancels all runs of the conversation, also one that was asked for and has not begun. Those
  return, and the conversation is paused, as with the SDK. Any other cancel is raised by the run.
- **Tools** hear of a stop before their run is cancelled: see `_tools`.
- **A terminal** is the conversation's, not the run's. When a run is stopped, the command in its foreground is
  ended; its shell and jobs in the background are stopped by `close()`. See `_processes`.
- **`close()`** is sync, as the SDK's, and may be called in any thread. It cannot wait for a run in the event
  loop of its own thread: `aclose()` can.
- **A conversation that is dropped** is closed, in a thread of its own. The SDK keeps it until the program exits.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
import time
import warnings
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload
from weakref import WeakSet

import openhands.sdk as sdk
from openhands.sdk import AgentBase, LocalWorkspace, RemoteConversation, RemoteWorkspace

from quiesce import (
    CancelToken,
    Grace,
    Leftover,
    Reason,
    ScopeClosed,
    StopReport,
    current_token,
    shielded,
    to_thread,
)
from quiesce.kernel.inner import (
    as_reason,
    describe,
    is_trouble,
    log_report,
    thread_stuck_at,
    users_site,
    work_with,
)
from quiesce.dropin.contained import Call
from quiesce.dropin.driven import drive_in
from quiesce.dropin.handing import replaces
from quiesce.dropin.signatures import with_arguments_of

from ._processes import LOOK_EVERY, ConversationProcesses
from ._runs import Run, calls, current_run
from ._tools import aside, contain_tools, runs_tools_as_usual

Status = sdk.conversation.ConversationExecutionStatus


@replaces(sdk.LocalConversation)
class LocalConversation(sdk.LocalConversation):
    """A conversation in this program, as the SDK's; what it has started ends with it."""

    _runs: WeakSet[Run]

    @with_arguments_of(sdk.LocalConversation.__init__)
    def __init__(self, agent: Any, *args: Any, **kwargs: Any) -> None:
        # The user's own agent stays as it is: another conversation may have it too, of the SDK's.
        own = agent.model_copy() if runs_tools_as_usual(agent) else agent
        cast(Any, super()).__init__(own, *args, **kwargs)
        self._contain()

    def _contain(self) -> None:
        atexit.unregister(self.close)  # the SDK's, which would keep us
        contain_tools(self.agent)
        self._processes = ConversationProcesses()
        self._runs = WeakSet()
        self._token = CancelToken()
        self._close_lock = threading.RLock()
        self._last_run: Run | None = None
        self._report: StopReport | None = None
        self._made_at = describe(users_site())
        _open_conversations.add(self)

    @property
    def report(self) -> StopReport | None:
        """What the end of the last run has stopped, or `close()`, and what is left; None before."""
        last = self._last_run
        return self._report or (last.report if last is not None else None)

    # Runs

    def run(self) -> None:
        """As the SDK's. Ctrl-C stops it, and `KeyboardInterrupt` is raised when it has settled."""
        run = self._begin("Conversation.run")
        try:
            _drive(run)
        finally:
            run.has_ended.set()

    # Not an async function: an interrupt between the call and its first step must not be lost.
    def arun(self) -> Any:
        """As the SDK's, except that a cancel, or a timeout, is raised."""
        return self._begin("Conversation.arun").result()

    def _begin(self, name: str) -> Run:
        if self._token.cancelled:
            raise ScopeClosed(
                f"conversation {self.id} was closed ({self._token.reason}): open it again to go on"
            )
        is_sync = name.endswith(".run") and _is_sync(self.agent)
        work = self._work_in_thread if is_sync else self._work
        run = self._last_run = Run(work, name, self._processes)
        self._report = None
        self._runs.add(run)
        return run

    async def _work(self) -> None:
        await self._stoppable(super().arun)

    async def _work_in_thread(self) -> None:
        def run() -> None:
            run = current_run.get()
            assert run is not None
            run.pause = partial(sdk.LocalConversation.pause, self)
            forget = current_token().on_cancel(partial(aside, sdk.LocalConversation.interrupt, self))
            try:
                with calls("Conversation.run"):
                    sdk.LocalConversation.run(self)
            finally:
                forget()
                run.pause = None

        await self._stoppable(partial(to_thread, run))

    async def _stoppable(self, run: Callable[[], Awaitable[None]]) -> None:
        token = current_token()
        # At once, and not when the run has ended: a tool waits for its command.
        forget = token.on_cancel(partial(aside, self._processes.end_commands, Grace()))
        try:
            if not self._agent_ready:
                await to_thread(self._ensure_agent_ready)
            self._find_processes()
            await run()
        finally:
            forget()
            self._arun_task = None
            self._find_processes()
            if token.cancelled:
                await to_thread(self._settle)

    def _settle(self) -> None:
        """After a run that was stopped: the SDK has done its part, unless the stop came before its first step."""
        super().pause()
        self._processes.end_commands(Grace())

    def _find_processes(self) -> None:
        if self._agent_ready:
            self._processes.find(self.agent)

    def interrupt(self) -> None:
        """As the SDK's, for sync runs too; without waiting, from any thread."""
        runs = list(self._runs)
        self._stop_runs(Reason("user", "interrupt()"))
        if not any(run.loop is not None and not run.has_ended.is_set() for run in runs):
            self.pause()

    def _stop_runs(self, reason: Reason) -> list[Run]:
        runs = [run for run in self._runs if not run.has_ended.is_set()]
        for run in runs:
            run.cancel(reason)
        return runs

    # Other sync work

    @with_arguments_of(sdk.LocalConversation.execute_tool)
    def execute_tool(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(super().execute_tool, *args, **kwargs)

    @with_arguments_of(sdk.LocalConversation.rerun_actions)
    def rerun_actions(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(super().rerun_actions, *args, **kwargs)

    def _with_token(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            with work_with(self._token):
                return fn(*args, **kwargs)
        finally:
            self._find_processes()

    def fork(self, *args: Any, **kwargs: Any) -> LocalConversation:
        fork: Any = super().fork(*args, **kwargs)
        atexit.unregister(fork.close)
        fork.__class__ = type(self)
        fork._contain()
        return cast(LocalConversation, fork)

    # The end

    def close(self, *, grace: Grace | None = None, reason: Reason | str | None = None) -> StopReport:  # type: ignore[override, unused-ignore]
        """Stop all runs and processes of the conversation, wait until they have ended, and report.

        From any thread, any number of times. It blocks the thread, for as long as `grace` allows. In the thread
        whose event loop runs the conversation it can only ask a run to stop, and says so: use `aclose()`.
        """
        grace = grace or Grace()
        why = as_reason(reason, Reason("user", "closed"))
        with self._close_lock:
            if self._report is not None and self._cleanup_complete and not self._report.left:
                return self._report
            began = time.monotonic()
            left = self._stop_work(why, grace)
            self._find_processes()
            if not self._cleanup_complete:
                left += _within(grace.total, super().close, f"the SDK's close() of {self.id}", self._made_at)
            left += self._processes.stop(grace)
            _open_conversations.discard(self)
            name = f"conversation {self.id}"
            self._report = report = StopReport(name, why, time.monotonic() - began, left, 0)
        if is_trouble(report):
            log_report(report)
        return report

    def _stop_work(self, reason: Reason, grace: Grace) -> list[Leftover]:
        """Stop the runs, and wait for those that do not wait for us; what is left of them."""
        self._token.cancel(reason)
        give_up_at = time.monotonic() + grace.total
        stopped = self._stop_runs(reason)
        left: list[Leftover] = []
        for run in list(self._runs):
            if run is current_run.get():
                continue  # it is what calls us
            if run.loop is not None and run.loop is asyncio._get_running_loop() and run in stopped:
                left.append(
                    Leftover("run", run.name, self._made_at, "its clean-up: the event loop is in close()")
                )
                continue
            if run in stopped and run.loop is not None:
                run.has_ended.wait(max(0.0, give_up_at - time.monotonic()))
            while run.calls_left("") and time.monotonic() < give_up_at:
                time.sleep(LOOK_EVERY)
            theirs = run.report.left if run in stopped and run.report is not None else ()
            left += [one for one in theirs if one.kind != "thread"] + run.calls_left(self._made_at)
        return left

    async def aclose(self, *, grace: Grace | None = None, reason: Reason | str | None = None) -> StopReport:
        """`close()`, for async code: it also waits for a run in this event loop, and blocks nothing.

        If you are cancelled meanwhile, the conversation is closed all the same, and then your cancellation is
        raised; the report is in `report`.
        """
        close = partial(self.close, grace=grace, reason=reason)
        return await shielded(to_thread, close, within=3 * (grace or Grace()).total)

    def __del__(self) -> None:
        if "_made_at" in self.__dict__ and not self._cleanup_complete:
            aside(self.close)
            warnings.warn(f"a conversation was dropped unclosed, made at {self._made_at}", ResourceWarning, 2)


_open_conversations: WeakSet[LocalConversation] = WeakSet()


@atexit.register
def _close_all() -> None:
    for conversation in list(_open_conversations):
        conversation.close(reason=Reason("shutdown", "the program exits"))


def _within(seconds: float, fn: Callable[[], object], name: str, made_at: str) -> list[Leftover]:
    """Call `fn()` in a thread, and wait for it so long at most; its error is raised."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            fn()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=copy_context().run, args=(call,), daemon=True, name=name)
    try:
        thread.start()
    except RuntimeError:  # the program exits, and starts no threads any more
        call()
    else:
        thread.join(seconds)
        if thread.is_alive():
            return [Leftover("thread", name, made_at, thread_stuck_at(thread.ident))]
    if errors:
        raise errors[0]
    return []


def _is_sync(agent: AgentBase) -> bool:
    """Whether the agent, or a model of it, has a sync method of its own, and the async one of a base class."""
    pairs = [(agent, "step", "astep")]
    pairs += [(model, "completion", "acompletion") for model in agent.get_all_llms()]
    return any(_depth(one, sync) < _depth(one, other) for one, sync, other in pairs)


def _depth(owner: object, name: str) -> int:
    """How far up the bases of its class it is defined."""
    return next(index for index, base in enumerate(type(owner).__mro__) if name in vars(base))


def _drive(run: Run) -> None:
    """Wait for `run` in an event loop of its own, in another thread if this one has a loop that runs."""
    if asyncio._get_running_loop() is not None:
        try:
            _within(threading.TIMEOUT_MAX, partial(_drive, run), run.name, "")
        except BaseException:
            run.cancel(Reason("user", "the caller was interrupted"))
            raise
        return
    loop = asyncio.new_event_loop()
    try:
        drive_in(loop, run)
    finally:
        if not loop.is_running():
            loop.close()


if TYPE_CHECKING:  # it gives an object of another class, which type checkers do not expect of a class

    @overload
    def Conversation(
        agent: AgentBase, *, workspace: RemoteWorkspace, **options: Any
    ) -> RemoteConversation: ...
    @overload
    def Conversation(
        agent: AgentBase, *, workspace: str | Path | LocalWorkspace = ..., **options: Any
    ) -> LocalConversation: ...
    def Conversation(agent: AgentBase, **options: Any) -> Any: ...  # noqa: N802

else:

    @replaces(sdk.Conversation)
    class Conversation(sdk.Conversation):
        """Makes a `LocalConversation`; with a remote workspace the SDK's own `RemoteConversation`, as it is."""

        @with_arguments_of(sdk.Conversation.__new__)
        def __new__(cls, *args, **kwargs):
            bound = inspect.signature(sdk.Conversation.__new__).bind(cls, *args, **kwargs)
            bound.apply_defaults()
            options = dict(list(bound.arguments.items())[1:])
            if isinstance(options["workspace"], RemoteWorkspace):
                return sdk.Conversation.__new__(sdk.Conversation, *args, **kwargs)
            return LocalConversation(**options)
