"""One run, from its start to its settled end, always in the same order.

The engine's main task and the input guardrails run side by side in a scope. However that ends (a final
output, an error of any of them, a cancel of the caller, a stop of the scope from anywhere), first everything
is drained, then the transcript is completed, then it is saved, and then the hooks are told. Further cancels
of the caller do not interrupt saving and telling. Only then does the caller get control back. All of it has
to fit into the run's `Grace`: a session or a hook that hangs has the time that draining has not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from quiesce import ChildCancelled, Grace, Reason, Scope, ScopeClosed, shielded
from quiesce.agents.agent import AgentsException, RunErrorDetails
from quiesce.agents.store import StoreError
from quiesce.kernel.inner import (
    GuardedCall,
    children_left,
    core_of,
    is_aftermath,
    is_cancel,
    stop_asked_for,
    users_site,
)
from quiesce.models import AssistantMessage, Item, ToolResult

from .engine import Engine


class AgentRun:
    """One run of an agent: its engine, its scope, and why it was stopped.

    A run that saves its end and tells its hooks also when it was not stopped sets `always_announces`.
    """

    __slots__ = ("_blocked", "_said", "asked", "engine", "late_failure", "reason", "scope")

    always_announces = False
    engine: Engine

    def __init__(self, engine: Engine | None = None) -> None:
        if engine is not None:  # a run of a conversation can be stopped before it has an engine
            self.engine = engine
        self.scope: Scope | None = None
        #: Why it was stopped, if it was.
        self.reason: Reason | None = None
        #: Why it is to be stopped, perhaps before there is anything to stop.
        self.asked: Reason | None = None
        #: An error of saving its end, or of a hook.
        self.late_failure: BaseException | None = None
        # Everything that a stopped run has added, and the part of it that no guardrail has passed.
        self._said: list[Item] | None = None
        self._blocked: list[Item] = []

    def cancel(self, reason: Reason) -> None:
        """Stop it, from any thread; before its start, it stops as soon as it starts."""
        # First the reason, then a look for the scope; `_publish` does it the other way round. So whichever
        # comes first, in whichever thread, one of the two sees the other.
        self.asked = reason
        if self.scope is not None:
            self.scope.cancel(reason)

    async def run(self) -> None:
        """Run until everything is settled. Raises what failed, or the caller's own cancellation.

        If the scope was stopped, it returns, and `reason` says why.
        """
        engine = self.engine
        why = stop_asked_for()
        if why is not None:
            raise ScopeClosed(
                f"cannot start a run of {engine.agent.name!r}: what it would be a part of is being stopped ({why}); "
                "one that is part of a clean-up: await shielded(Runner.run, agent, input)"
            )
        # The same as `guarded(engine.drive, *engine.guards())`, which does not hand out its scope: a run is
        # stopped by that, and reports from it.
        call = GuardedCall.begin(
            f"run of {engine.agent.name}",
            engine.drive,
            engine.guards(),
            None,
            engine.settings.config.grace,
            users_site(),
        )
        scope = call.face()
        self._publish(scope)
        failure = await call.failure()
        self.reason = scope.reason
        if failure is not None:
            if self.reason is None:
                # The scope was not stopped, so it is the caller's own cancel that came through.
                self.reason = Reason("cancelled", "the run was cancelled")
            elif self.reason.kind != "error" and _is_of_the_stop(failure):
                failure = None  # the scope was stopped on purpose: that is not an error of the run
        stopped = failure is not None or self.reason is not None
        if stopped:
            self._settle(scope, failure)
        settings = engine.settings
        # A run that was not stopped has saved everything already, and the usual one has no hooks: it does not
        # pay for a shield.
        if self.always_announces or (stopped and settings.journal is not None) or settings.hooks is not None:
            await self._announce(failure)
        if failure is not None:
            if isinstance(failure, AgentsException):
                failure.run_data = self.details(failure.run_data)
            try:
                raise failure
            finally:
                del failure  # or the traceback would hold itself, by way of this frame

    def _settle(self, scope: Scope, failure: BaseException | None) -> None:
        """Complete the transcript of a run that was stopped, and take out what no guardrail has passed."""
        engine = self.engine
        # A run that was stopped on purpose can be resumed where it waits for approvals. One that failed
        # cannot, unless a conversation goes on with it.
        keep_pending = failure is None or engine.settings.keeps_approvals
        engine.settle(self.reason, children_left(scope), keep_pending=keep_pending)
        self._said = list(engine.transcript.new)
        self._blocked = engine.transcript.withdraw()
        if self._blocked and not isinstance(failure, AgentsException):
            # No error carries `run_data` that could say what was not kept: the report says it.
            note = not_kept(self._blocked)
            if note is not None:
                self._add_note(note)

    def _publish(self, scope: Scope) -> None:
        """Make the scope known to those who stop the run, and stop it now if that was asked for before."""
        self.scope = scope
        if self.asked is not None:
            scope.cancel(self.asked)

    async def _announce(self, failure: BaseException | None) -> None:
        """Save what a stop has added, and tell the hooks; further cancels do not interrupt it."""
        try:
            if self.reason is None:  # it was not stopped, so no deadline holds
                await shielded(self._save_and_tell)
            else:
                await shielded(self._save_and_tell, within=self._seconds_to_settle(), scope=self.scope)
        except BaseException as error:
            # `shielded` raises the caller's cancel, and has what failed inside as its cause.
            self.late_failure = error.__cause__ if is_cancel(error) else error
            self._note_loss(error)
            if failure is None or is_cancel(error):
                raise  # a cancel is the caller's own, and comes before any failure
            if isinstance(failure, StoreError) and isinstance(error, StoreError):
                return  # the store has failed before, and is reported once
            failure.add_note(f"after the run was settled: {error!r}")

    def _seconds_to_settle(self) -> float:
        """The seconds that saving and telling may take: what is left of the grace, minus the time to react to
        a cancel.

        At least a fifth of the grace: a tool that does not end, and uses up all of it, must not cost the
        history.
        """
        assert self.scope is not None
        core = core_of(self.scope)
        grace, now = core.grace, core.backend.now()
        stop = core.stop_state
        end = stop.ends[-1] if stop is not None else math.inf
        if math.isinf(end):  # there was nothing to drain
            end = (stop.started if stop is not None else now) + grace.total
        total = Grace().total if math.isinf(grace.total) else grace.total
        return max(end - now - grace.terminate, total / 5)

    def _note_loss(self, error: BaseException) -> None:
        """Put into the report what could not be saved or told."""
        loss = error.__cause__ if is_cancel(error) else error
        if isinstance(loss, Exception):
            self._add_note(f"after the run was settled: {loss!r}")

    def _add_note(self, note: str) -> None:
        """Add it to the report of the scope."""
        if self.scope is not None:
            core = core_of(self.scope)
            core.add_notes([note])
            core.report()

    async def _save_and_tell(self) -> None:
        journal, transcript = self.engine.settings.journal, self.engine.transcript
        try:
            if journal is not None:
                await journal.add(transcript.take_unsaved(), transcript.take_late())
        finally:  # also if saving failed
            await self._tell_hooks()

    async def _tell_hooks(self) -> None:
        agent, reason = self.engine.agent, self.reason
        context, hooks = self.engine.settings.context, self.engine.settings.hooks
        if hooks is None:
            return
        try:
            if reason is not None and reason.kind != "error":
                await hooks.on_cancel(context, agent, reason)
        finally:
            assert self.scope is not None
            assert self.scope.report is not None
            await hooks.on_settled(context, agent, self.scope.report)

    def details(self, of_tool: RunErrorDetails | None = None) -> RunErrorDetails:
        """How far it came. `of_tool` is how far a sub-agent came, if the error is from there."""
        engine, transcript = self.engine, self.engine.transcript
        report = self.scope.report if self.scope is not None else None
        said = self._said if self._said is not None else transcript.new
        blocked = [*(of_tool.blocked if of_tool is not None else ()), *self._blocked]
        return RunErrorDetails(
            transcript.given,
            said,
            engine.requests.usage,
            engine.agent,
            report,
            blocked,
            transcript.new,
            engine.input_guardrail_results,
            engine.output_guardrail_results,
        )


def not_kept(blocked: Sequence[Item]) -> str | None:
    """What a report says about text that no guardrail has passed; None if there is none."""
    texts = [item.text for item in blocked if isinstance(item, AssistantMessage)]
    texts += [item.output for item in blocked if isinstance(item, ToolResult) and item.outcome == "finished"]
    return f"not kept, since no guardrail has passed it: {' '.join(texts)!r}" if texts else None


def _is_of_the_stop(failure: BaseException) -> bool:
    return not is_cancel(failure) and (isinstance(failure, ChildCancelled) or is_aftermath(failure))
