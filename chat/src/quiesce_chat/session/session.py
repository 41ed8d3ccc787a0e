"""One chat, without a terminal: it sends the user's messages, tracks what is running, and stops it.

Invariants
- One activity at a time: a run of the agent, a shell command of the user (`!command`), or the search for another
  model. Each is a child of the chat's scope.
- A message sent during a run becomes the next message. It is stored in the conversation at once, and the model sees
  it on its next turn.
- The first stop gives the activity its own grace. The second halves the remaining time, and the third leaves only
  enough for SIGKILL. The user is told about each, and when the activity has settled, one line reports what was
  stopped, how long that took, and what is left.
- A Ctrl-C pressed just after an activity has ended was meant for that activity: the user is told so, and the chat
  does not exit.
- A call that needs approval is not made until the user approves it here. If a stop comes while the question is open,
  the question stays unanswered.
- Every failure is shown to the user, and the chat continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from quiesce import Grace, Handle, Process, Reason, Scope, StopReport, to_thread
from quiesce.agents import (
    Agent,
    AgentsException,
    Conversation,
    ConversationBusy,
    FunctionTool,
    MaxTurnsExceeded,
    RawResponseEvent,
    Rejected,
    RunConfig,
    RunItemStreamEvent,
    Store,
    StoreConflict,
    StreamEvent,
    ToolContext,
)
from quiesce.agents.inner import has_queued_messages
from quiesce.cli.inner import error_text
from quiesce.inner import Approved, exact, printed, whole
from quiesce.kernel.inner import note_ages
from quiesce.models import Model, ModelError, TextDelta, ToolCall, ToolResult
from quiesce_chat.models import UnknownModel, describe
from quiesce_chat.tools import make_agent, preview_of, run_program, title_of, users_command

from .activity import MODEL, ActivityHooks, RunningItems
from .face import READING_TIME, Approval, Call, Face
from .wording import stop_line

Activity: TypeAlias = Literal["run", "command", "model"]

GRACE = Grace(cancel=2.0, terminate=1.0, kill=1.0)
# For the third press. SIGKILL is sent at once; the time is for the processes to exit.
NO_GRACE = Grace(cooperate=0.0, cancel=0.0, terminate=0.0, kill=0.5)
MAX_TURNS = 100
_USER_STOPPED = Reason("user", "stopped at the prompt")
_AGE_INTERVAL = 0.5  # seconds
_BUSY = "Something is already running. Stop it first, or wait."


class Chat:
    """A conversation with an agent that works in a folder.

    Use it as `async with`. The face must exist before the chat: the agent's tools write their output to it.
    """

    def __init__(
        self,
        model: Model,
        face: Face,
        *,
        folder: Path,
        store: Store | None = None,
        conversation_id: str | None = None,
        approve_all: bool = False,
        resumed_by: str = "quiesce chat --resume",
    ) -> None:
        self.face = face
        self.folder = folder
        self.model = model
        self.approve_all = approve_all
        self._resumed_by = resumed_by
        self.always_allowed: set[str] = set()
        self.running = RunningItems(face.refresh)
        self.activity: Activity | None = None
        self.presses = 0
        self.failures = 0
        #: When the last activity ended, by `time.monotonic()`.
        self._ended_at = -inf
        #: What the user's last `!command` printed, until `/share` sends it.
        self.last_output = ""
        self._process: Process | None = None
        self._model_search: Handle | None = None
        #: The last search for a model failed or was stopped.
        self._model_not_found = False
        self._handle: Handle | None = None
        self._scope: Scope | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        #: Summaries of what was running when the user first asked for a stop.
        self._stopped_items: list[str] = []
        self._in_text = False
        #: Messages sent during a command or a model search. They enter the conversation when that has ended.
        self._unsent: list[str] = []
        self._calls: dict[str, Call] = {}
        self._approved = Approved()
        self.agent: Agent[Any] = make_agent(model, folder, face.program_output, self._approved)
        self.conversation = Conversation(
            self.agent,
            store=store,
            conversation_id=conversation_id,
            hooks=ActivityHooks(self.running, lambda: self.model_name),
            run_config=RunConfig(approve=self._approve),
            max_turns=MAX_TURNS,
            grace=GRACE,
        )

    async def __aenter__(self) -> Self:
        self._scope = await Scope.open("chat", on_error="report", on_child_error=self._child_failed)
        self._note_ages()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # Closing the chat counts as the first stop, so that the user gets the line about what was stopped.
        if self.activity is not None and not self.presses:
            self._stopped_items = self.running.summaries()
            self.presses = 1
        assert self._scope is not None
        assert self._age_timer is not None
        self._age_timer.cancel()
        try:
            await self._scope.close(reason=Reason("user", "the chat ended"), grace=GRACE)
        finally:
            await self.conversation.close()

    def _note_ages(self) -> None:
        """Record when each task and scope was first seen, so that `/tree` can show ages."""
        # A timer and not a task: a task would be listed in the tree that it serves.
        note_ages()
        self._age_timer = asyncio.get_running_loop().call_later(_AGE_INTERVAL, self._note_ages)

    def _child_failed(self, handle: Handle, error: BaseException) -> None:
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Show the user what went wrong. The chat continues."""
        self.failures += 1
        if isinstance(error, StoreConflict):
            self.face.show_error(
                "This conversation was changed elsewhere, perhaps by another chat. "
                "Your last message is not part of it, and nothing more can be added here. "
                "Leave with /quit, then open the current version with "
                f"{self._resumed_by} {self.conversation.id}"
            )
        elif isinstance(error, ConversationBusy):
            self.face.show_error(
                "This conversation is being run by another chat. Your message was sent, and is answered there. "
                "Type /resume to continue here when that has ended."
            )
        elif isinstance(error, MaxTurnsExceeded):
            self.face.show_error(
                f"Stopped after {MAX_TURNS} turns without a final answer. Type /resume to continue."
            )
        else:
            self.face.show_error(describe_error(error))

    # Sending

    async def say(self, text: str) -> None:
        """Send a message. It starts a run, or is queued if something is running already."""
        text, replaced = whole(text)
        if replaced:
            what = "byte that is not UTF-8 was" if replaced == 1 else "bytes that are not UTF-8 were"
            self.face.say(f"{replaced} {what} replaced by \ufffd")
        if self.activity in ("command", "model"):
            self._unsent.append(text)
            what = "the command has ended" if self.activity == "command" else "the model has been found"
            self.face.say(f"Queued: this will be sent when {what}.")
            return
        await self.conversation.asend_message(text)
        if self.activity == "run":
            self.face.say("Queued: the model will see this on its next turn.")
        elif self.activity is None:
            self.start_run()

    @property
    def has_queued_messages(self) -> bool:
        """Whether the conversation holds a message that no run has taken up yet."""
        return has_queued_messages(self.conversation)

    def start_run(self) -> None:
        """Let the agent answer, or continue."""
        self._start("run", self._run)

    def start_command(self, command: str) -> None:
        """Run a shell command of the user."""
        if self.activity is not None:
            self.face.show_error(_BUSY)
            return
        self._start("command", lambda: self._command(command))

    def _start(self, activity: Activity, main: Callable[[], Awaitable[None]]) -> None:
        assert self._scope is not None
        self.activity = activity
        self.presses = 0
        self._stopped_items = []
        self._handle = self._scope.spawn(self._run_activity, main, name=f"chat {activity}")
        self.face.refresh()

    @property
    def is_stopped(self) -> bool:
        """Whether the user has stopped the current activity, or the last one if there is none."""
        return self.presses > 0

    async def wait_idle(self) -> None:
        """Wait until no activity is running."""
        # In a loop, because an activity may start the next one as its last act.
        while self._handle is not None and not self._handle.done:
            await self._handle.wait()

    async def _run_activity(self, main: Callable[[], Awaitable[None]]) -> None:
        try:
            if self.is_stopped:
                # The stop came between spawning this task and its first step.
                self._report_stop(_empty_report())
            else:
                await main()
            has_unsent = bool(self._unsent)
            # If the search failed, the message may not be meant for the model that is still in use.
            may_send = not (self.activity == "model" and self._model_not_found)
            # `activity` stays set until all of them are stored: a message that arrives during one of these awaits
            # joins the queue. If it were sent directly, it would start a second run next to ours.
            while self._unsent:
                await self.conversation.asend_message(self._unsent.pop(0))
        finally:
            self.running.clear()
            self.activity = None
            self._ended_at = time.monotonic()
            self.face.refresh()
        if has_unsent and may_send:
            self.start_run()
        elif has_unsent:
            self._mention_queued()

    # A run

    async def _run(self) -> None:
        self._approved.clear()
        conversation = self.conversation
        try:
            while True:
                before = conversation.report
                status = await conversation.arun(on_event=self._on_event)
                # A message that came too late for the last turn of that run needs a run of its own.
                if (
                    self.is_stopped
                    or conversation.report is before
                    or status != "finished"
                    or not self.has_queued_messages
                ):
                    break
        except Exception as error:
            self._end_text(cut=True)
            self.fail(error)
            if not self.is_stopped:
                self._mention_queued()
        finally:
            self._end_text(cut=self.is_stopped)
            self.running.clear()
            report = conversation.report
            if self.is_stopped and report is not None:
                self._report_stop(report)
        if conversation.status == "paused" and not self.is_stopped:
            self.face.say("Paused. Type /resume to continue, or send another message.")

    async def _on_event(self, event: StreamEvent) -> None:
        if isinstance(event, RawResponseEvent):
            if isinstance(event.data, TextDelta):
                self._in_text = True
                self.face.text(event.data.text)
        elif isinstance(event, RunItemStreamEvent):
            item = event.item
            if event.name == "message_output_created":
                self._end_text(cut=False)
            elif isinstance(item, ToolCall):
                call = Call(item.call_id, exact(item.name), title_of(item.name, item.arguments))
                self._calls[item.call_id] = call
                self.face.called(call)
            elif isinstance(item, ToolResult):
                self.running.finish(item.call_id)
                call = self._calls.pop(item.call_id, Call(item.call_id, "tool", ""))
                self.face.returned(call, item.outcome, item.elapsed, item.output)

    def _end_text(self, *, cut: bool) -> None:
        if self._in_text:
            self._in_text = False
            self.face.text_done(cut=cut)

    async def _approve(self, context: ToolContext[Any], tool: FunctionTool) -> bool | Rejected:
        if self.approve_all or tool.name in self.always_allowed:
            return True
        call = Call(context.tool_call_id, tool.name, title_of(tool.name, context.tool_arguments))
        self.running.start(call.call_id, f"question: {tool.name}", call.title)
        try:
            preview, seen = await to_thread(preview_of, tool.name, context.tool_arguments, self.folder)
            decision = await self.face.ask(Approval(call, preview))
        except OSError as error:
            # What the call would change cannot be shown, and an approval without a preview would be blind.
            return Rejected(f"Not written: {error}")
        finally:
            self.running.finish(call.call_id)
        if decision == "always":
            self.always_allowed.add(tool.name)
        if decision != "no" and seen is not None:
            # The approval is for the file as it was shown. If the file has changed since, the write is refused.
            self._approved.add(call.call_id, seen)
        return decision != "no"

    # A shell command of the user

    async def _command(self, command: str) -> None:
        call = Call("!", "!", exact(command))
        self.running.start(call.call_id, "!", call.title)

        def on_start(process: Process) -> None:
            self._process = process
            if self.is_stopped:
                # `stop` found no process to cancel: it was called while this one was being started.
                process.cancel(_USER_STOPPED)

        try:
            done = await run_program(
                users_command(command),
                self.folder,
                "command",
                lambda text: self.face.program_output("!", text),
                on_start,
            )
            self.last_output = f"I ran `{command}`; {done.for_model()}"
            outcome = "finished" if done.returncode == 0 else f"status {done.returncode}"
            if not self.is_stopped:
                self.failures += done.returncode != 0
                self.face.returned(call, outcome, done.elapsed, "")
        except OSError as error:
            self.fail(error)
        finally:
            process, self._process = self._process, None
            self.running.clear()
            if self.is_stopped:
                report = process.report if process is not None else None
                self._report_stop(report or _empty_report())

    # Stopping

    def stop(self) -> bool:
        """Stop the current activity, or stop it faster; False if there is none. Never waits."""
        if self.activity is None:
            return False
        self.presses += 1
        if self.presses == 1:
            self._stopped_items = self.running.summaries()
        elif self.presses == 2:
            self.face.say("Stopping faster.")
        else:
            self.face.say("Stopping now.")
        grace = NO_GRACE if self.presses > 2 else None
        if self.activity == "run":
            self.conversation.interrupt(_USER_STOPPED, grace=grace)
        elif self._process is not None:
            self._process.cancel(_USER_STOPPED, grace=grace)
        elif self._model_search is not None:
            self._model_search.cancel(_USER_STOPPED)
        self.face.refresh()
        return True

    def interrupt(self) -> bool:
        """Handle Ctrl-C: stop the current activity, or stop it faster.

        Returns False if nothing is running and nothing was running a moment ago. The caller may then take the key
        as a request to exit.
        """
        if self.stop():
            return True
        if self.is_visibly_idle:
            return False
        self.face.say("Already stopped. Press Ctrl-C again to exit.")
        self.face.refresh()
        return True

    @property
    def is_visibly_idle(self) -> bool:
        """Whether nothing has been running for long enough that the user can have noticed."""
        return self.activity is None and time.monotonic() - self._ended_at >= READING_TIME

    def _report_stop(self, report: StopReport) -> None:
        self.face.stopped(stop_line(self._stopped_items, report), clean=report.clean)
        self._mention_queued()

    def _mention_queued(self) -> None:
        if self.has_queued_messages:
            self.face.say("Your queued message was not sent. Press Enter to send it, or type more.")

    def pause(self) -> None:
        """Pause the run when its current step has ended."""
        if self.activity == "run":
            self.conversation.pause()
            self.face.say("Pausing after this step. Esc or Ctrl-C stops at once.")
        else:
            self.face.say("Nothing to pause: the agent is not running.")

    def resume(self) -> None:
        """Continue a run that was paused or stopped."""
        if self.activity is not None:
            self.face.say("Already running.")
        elif not self.conversation.items:
            self.face.say("Nothing to resume: send a message first.")
        elif self.conversation.status == "finished" and not self.has_queued_messages:
            self.face.say("Nothing to resume: the last answer is complete.")
        else:
            self.start_run()

    # The model

    @property
    def model_name(self) -> str:
        """The name of the model that answers, safe to print."""
        return exact(describe(self.model))

    def start_model_search(self, spec: str, look: Callable[[], Awaitable[None]]) -> None:
        """Look for another model as an activity of its own, because a server may take long to answer."""
        if self.activity is not None:
            self.face.show_error(_BUSY)
            return
        self._start("model", lambda: self._search_model(exact(spec), look))

    async def _search_model(self, spec: str, look: Callable[[], Awaitable[None]]) -> None:
        assert self._scope is not None
        self.running.start(MODEL, "looking for", spec)
        # A child of its own, so that a stop can cancel it alone. If it fails, the scope's `on_child_error` shows why.
        self._model_search = self._scope.spawn(look, name="look for a model")
        try:
            await self._model_search.wait()
        finally:
            self._model_not_found = self._model_search.state != "finished"
            self._model_search = None
            if self.is_stopped:
                self._report_stop(_empty_report())

    def use_model(self, model: Model) -> None:
        """Let another model answer from the next turn on. The caller closes the previous one."""
        self.model = model
        fresh = make_agent(model, self.folder, self.face.program_output, self._approved)
        agent = self.conversation.agent
        agent.model, agent.tools, agent.instructions = fresh.model, fresh.tools, fresh.instructions


def _empty_report() -> StopReport:
    """A report for a stop that found nothing running."""
    return StopReport("chat", _USER_STOPPED, 0.0, (), 0)


def describe_error(error: BaseException) -> str:
    """Describe an error for the user. Errors of other libraries get their type's name in front of the message."""
    text = printed(error_text(error))
    return (
        text
        if isinstance(error, (AgentsException, ModelError, UnknownModel, OSError)) and text
        else f"{type(error).__name__}: {text}"
    )
