"""`Runner`, contained: a run has ended when it returns, with all tasks, threads and processes that it started."""

from __future__ import annotations

from asyncio import Task
from typing import Any, cast

import agents

from quiesce import Reason
from quiesce.kernel.inner import OpenContainment, serves_the_program, users_site
from quiesce.dropin.contained import Call
from quiesce.dropin.driven import drive
from quiesce.dropin.handing import replaces
from quiesce.dropin.signatures import with_arguments_of

from ._results import ContainedRunResult, ContainedRunResultStreaming, stop_work_of

serves_the_program("agents.tracing.processors")  # it sends the traces of all runs


def lives_on(task: Task[Any]) -> bool:
    """Whether `task` belongs to a connection that a model keeps for its next run: a web socket's pings."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("websockets.")


@replaces(agents.Runner)
class Runner(agents.Runner):
    """Runs agents, as the SDK's `Runner` does; what a run has started ends with it."""

    @staticmethod
    @with_arguments_of(agents.Runner.run)
    async def run(*args: Any, **kwargs: Any) -> ContainedRunResult:
        call = Call(agents.Runner.run, name="Runner.run", keep=lives_on)
        return _with_report(await call.result(*args, **kwargs), call)

    @staticmethod
    @with_arguments_of(agents.Runner.run_sync)
    def run_sync(*args: Any, **kwargs: Any) -> ContainedRunResult:
        call = Call(agents.Runner.run, name="Runner.run_sync", keep=lives_on)
        return _with_report(drive(call, *args, **kwargs), call)

    @staticmethod
    @with_arguments_of(agents.Runner.run_streamed)
    def run_streamed(*args: Any, **kwargs: Any) -> ContainedRunResultStreaming:
        containment = OpenContainment("Runner.run_streamed", users_site(), keep=lives_on)
        try:
            result: Any = containment.run(agents.Runner.run_streamed, *args, **kwargs)
        except BaseException:
            containment.cancel(Reason("error", "it did not start"))
            raise
        result.__class__ = ContainedRunResultStreaming
        result._containment = containment
        containment.stop_with(stop_work_of(result))
        return cast(ContainedRunResultStreaming, result)


def _with_report(result: Any, call: Call[Any]) -> ContainedRunResult:
    result.__class__ = ContainedRunResult
    result.report = call.report
    return cast(ContainedRunResult, result)
