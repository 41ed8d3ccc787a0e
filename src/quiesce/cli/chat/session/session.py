"""One chat, without a terminal: what the user sends, what runs now, and how it is stopped.

Invariants
- One activity at a time: a run of the agent, a command of the user's (`!command`), or the search for another model. Each is a child of the chat's scope.
- What is sent while a run is on is the next message: it is in the conversation, durable, and the model hears of it before its next turn.
- The first stop is the activity's own grace. The second halves what is left of it, the third leaves no time but for SIGKILL. Each is
  told, and when all is over one line says what was stopped, how long that took, and what is left.
- A Ctrl-C that comes just behind the end of what ran was meant for that: it is told so, and does not leave the chat.
- A call that needs approval is not made before somebody has said so here; a stop while the question is open leaves it unanswered.
- Whatever fails is told, and the chat goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from quiesce import Grace, Handle, Process, Reason, Scope, StopReport, to_thread
from quiesce._safe.files import Approved
from quiesce._safe.printed import printed
from quiesce._safe.text import exact, whole
from quiesce.agents import (
    Agent,
    AgentsException,
    Conversation,
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
from quiesce.cli.base import of_error
from quiesce.cli.chat.tools import make_agent, preview_of, run_program, title_of, users_command
from quiesce.cli.models import UnknownModel, describe
from quiesce.kernel.inner import note_ages
from quiesce.models import Model, ModelError, TextDelta, ToolCall, ToolResult

from .activity import MODEL, Watch, WhatRuns
from .face import READ_IN, Approval, Call, Face
from .wording import stop_line

Activity: TypeAlias = Literal["run", "command", "model"]

GRACE = Grace(cancel=2.0, terminate=1.0, kill=1.0)
NO_GRACE = Grace(cooperate=0.0, cancel=0.0, terminate=0.0, kill=0.5)
_PRESSED = Reason("user", "stopped at the prompt")
MAX_TURNS = 100
_LOOK_EVERY = 0.5  # seconds


class Chat:
    """A conversation with an agent that works in a folder. Use it as `async with`, after its face was made."""

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
        self.always: set[str] = set()
        self.running = WhatRuns(face.changed)
        self.activity: Activity | None = None
        self.presses = 0
        self.failures = 0
        self._ended_at = -inf  # when something ran last
        self.last_output = ""  # of the user's own command
        self._process: Process | None = None
        self._looking: Handle | None = None  # for another model
        self._is_model_missing = False  # the one that was looked for last
        self._handle: Handle | None = None
        self._scope: Scope | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._stopped: list[str] = []
        self._mid_text = False
        self._waiting: list[str] = []  # sent while something else than a run was on
        self._calls: dict[str, Call] = {}
        self._approved = Approved()
        self.agent: Agent[Any] = make_agent(model, folder, face.heard, self._approved)
        self.conversation = Conversation(
            self.agent,
            store=store,
            conversation_id=conversation_id,
            hooks=Watch(self.running, lambda: self.model_name),
            run_config=RunConfig(approve=self._approve),
            max_turns=MAX_TURNS,
            grace=GRACE,
        )

    async def __aenter__(self) -> Self:
        self._scope = await Scope.open("chat", on_error="report", on_child_error=self._child_failed)
        self._note_ages()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self.activity is not None and not self.presses:
            self._stopped = self.running.in_words()
            self.presses = 1
        assert self._scope is not None
        assert self._next_look is not None
        self._next_look.cancel()
        try:
            await self._scope.close(reason=Reason("user", "the chat ended"), grace=GRACE)
        finally:
            await self.conversation.close()

    def _note_ages(self) -> None:
        """So that `/tree` can say how old everything is; by a timer, which is not part of it."""
        note_ages()
        self._next_look = asyncio.get_running_loop().call_later(_LOOK_EVERY, self._note_ages)

    def _child_failed(self, handle: Handle, error: BaseException) -> None:
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Tell what went wrong. The chat goes on."""
        self.failures += 1
        if isinstance(error, StoreConflict):
            self.face.complain(
                "somebody else goes on with this conversation, in another chat perhaps: what you said last is not part of it, and "
                "nothing more can be added here. Leave with /quit, and open it again, as it is by then, with "
                f"{self._resumed_by} {self.conversation.id}"
            )
        elif isinstance(error, MaxTurnsExceeded):
            self.face.complain(f"{MAX_TURNS} turns, and it is not at an end: resume it, if it is to go on")
        else:
            self.face.complain(explained(error))

    # Sending

    async def say(self, text: str) -> None:
        """Send a message: it is answered now, or kept as the next one."""
        text, replaced = whole(text)
        if replaced:
            what = "byte that is no UTF-8 was" if replaced == 1 else "bytes that are no UTF-8 were"
            self.face.say(f"{replaced} {what} replaced by \ufffd")
        if self.activity in ("command", "model"):
            self._waiting.append(text)
            what = "the command has ended" if self.activity == "command" else "the model is there"
            self.face.say(f"kept: it is sent when {what}")
            return
        await self.conversation.asend_message(text)
        if self.activity == "run":
            self.face.say("kept: the model hears of it before its next turn")
        elif self.activity is None:
            self.start_run()

    @property
    def has_kept_messages(self) -> bool:
        """Whether something was sent that no run has taken up."""
        return bool(self.conversation._history.inbox)

    def start_run(self) -> None:
        """Let the agent answer, or go on."""
        self._start("run", self._run)

    def start_command(self, command: str) -> None:
        """Run a command of the user's."""
        if self.activity is not None:
            self.face.complain("something runs already: stop it first, or wait")
            return
        self._start("command", lambda: self._command(command))

    def _start(self, activity: Activity, main: Callable[[], Awaitable[None]]) -> None:
        assert self._scope is not None
        self.activity = activity
        self.presses = 0
        self._stopped = []
        self._handle = self._scope.spawn(self._do, main, name=f"chat {activity}")
        self.face.changed()

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped what runs, or ran last."""
        return self.presses > 0

    async def idle(self) -> None:
        """Wait until nothing runs."""
        while self._handle is not None and not self._handle.done:
            await self._handle.wait()

    async def _do(self, main: Callable[[], Awaitable[None]]) -> None:
        try:
            if self.is_stopped:  # before its first step
                self._tell_stop(_nothing_ran())
            else:
                await main()
            sends = bool(self._waiting) and not (self.activity == "model" and self._is_model_missing)
            kept = bool(self._waiting) and not sends
            while self._waiting:  # what comes meanwhile waits, too: two runs at once there must never be
                await self.conversation.asend_message(self._waiting.pop(0))
        finally:
            self.running.clear()
            self.activity = None
            self._ended_at = time.monotonic()
            self.face.changed()
        if sends:
            self.start_run()
        elif kept:  # it may not be meant for the model that there is
            self._tell_kept()

    # A run

    async def _run(self) -> None:
        self._approved.clear()
        conversation = self.conversation
        try:
            while True:
                before = conversation.report
                status = await conversation.arun(on_event=self._heard)
                if (
                    self.is_stopped
                    or conversation.report is before
                    or status != "finished"
                    or not self.has_kept_messages
                ):
                    break
        except Exception as error:
            self._end_text(cut=True)
            self.fail(error)
            if not self.is_stopped:
                self._tell_kept()
        finally:
            self._end_text(cut=self.is_stopped)
            self.running.clear()
            report = conversation.report
            if self.is_stopped and report is not None:
                self._tell_stop(report)
        if conversation.status == "paused" and not self.is_stopped:
            self.face.say("paused: /resume goes on, or say something else")

    async def _heard(self, event: StreamEvent) -> None:
        if isinstance(event, RawResponseEvent):
            if isinstance(event.data, TextDelta):
                self._mid_text = True
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
                self.running.ends(item.call_id)
                made = self._calls.pop(item.call_id, Call(item.call_id, "tool", ""))
                self.face.returned(made, item.outcome, item.elapsed, item.output)

    def _end_text(self, *, cut: bool) -> None:
        if self._mid_text:
            self._mid_text = False
            self.face.text_done(cut=cut)

    async def _approve(self, context: ToolContext[Any], tool: FunctionTool) -> bool | Rejected:
        if self.approve_all or tool.name in self.always:
            return True
        call = Call(context.tool_call_id, tool.name, title_of(tool.name, context.tool_arguments))
        self.running.begins(call.call_id, f"question: {tool.name}", call.title)
        try:
            preview, seen = await to_thread(preview_of, tool.name, context.tool_arguments, self.folder)
            said = await self.face.ask(Approval(call, preview))
        except OSError as error:  # what it would change cannot be shown, so there is nothing to ask
            return Rejected(f"Not written: {error}")
        finally:
            self.running.ends(call.call_id)
        if said == "always":
            self.always.add(tool.name)
        if said != "no" and seen is not None:
            self._approved.add(call.call_id, seen)
        return said != "no"

    # A command of the user's

    async def _command(self, command: str) -> None:
        call = Call("!", "!", exact(command))
        self.running.begins(call.call_id, "!", call.title)

        def started(process: Process) -> None:
            self._process = process
            if self.is_stopped:  # while it was being started
                process.cancel(_PRESSED)

        try:
            done = await run_program(
                users_command(command),
                self.folder,
                "command",
                lambda text: self.face.heard("!", text),
                started,
            )
            self.last_output = f"I ran `{command}`; {done.told()}"
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
                self._tell_stop(report or _nothing_ran())

    # Stopping

    def stop(self) -> bool:
        """Stop what runs now, or stop it faster; False if nothing does. Never waits."""
        if self.activity is None:
            return False
        self.presses += 1
        if self.presses == 1:
            self._stopped = self.running.in_words()
        elif self.presses == 2:
            self.face.say("stopping faster")
        else:
            self.face.say("stopping now")
        grace = NO_GRACE if self.presses > 2 else None
        if self.activity == "run":
            self.conversation.interrupt(_PRESSED, grace=grace)
        elif self._process is not None:
            self._process.cancel(_PRESSED, grace=grace)
        elif self._looking is not None:
            self._looking.cancel(_PRESSED)
        self.face.changed()
        return True

    def interrupt(self) -> bool:
        """Ctrl-C: stop what runs, or stop it faster; False if nothing does, nor did a moment ago, when it was meant."""
        if self.stop():
            return True
        if self.is_at_rest:
            return False
        self.face.say("that has ended already; Ctrl-C again leaves")
        self.face.changed()
        return True

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing runs, and whoever looks at it may have noticed."""
        return self.activity is None and time.monotonic() - self._ended_at >= READ_IN

    def _tell_stop(self, report: StopReport) -> None:
        self.face.stopped(stop_line(self._stopped, report), clean=report.clean)
        self._tell_kept()

    def _tell_kept(self) -> None:
        if self.has_kept_messages:
            self.face.say("what you sent meanwhile is kept: Enter alone sends it on, or say more")

    def pause(self) -> None:
        """After this step."""
        if self.activity == "run":
            self.conversation.pause()
            self.face.say("pausing after this step; Esc or Ctrl-C stops at once")
        else:
            self.face.say("nothing to pause: the agent does not run")

    def resume(self) -> None:
        """Go on with what was paused or stopped."""
        if self.activity is not None:
            self.face.say("it runs already")
        elif not self.conversation.items:
            self.face.say("nothing to resume: say something first")
        elif self.conversation.status == "finished" and not self.has_kept_messages:
            self.face.say("nothing to resume: the last answer is complete")
        else:
            self.start_run()

    # The model

    @property
    def model_name(self) -> str:
        """Who answers."""
        return exact(describe(self.model))

    def start_looking(self, spec: str, look: Callable[[], Awaitable[None]]) -> None:
        """Look for another model: a server may take its time to say that it is there."""
        if self.activity is not None:
            self.face.complain("something runs already: stop it first, or wait")
            return
        self._start("model", lambda: self._look(exact(spec), look))

    async def _look(self, spec: str, look: Callable[[], Awaitable[None]]) -> None:
        assert self._scope is not None
        self.running.begins(MODEL, "looking for", spec)
        self._looking = self._scope.spawn(look, name="look for a model")  # what fails in it, the scope tells
        try:
            await self._looking.wait()
        finally:
            self._is_model_missing = self._looking.state != "finished"
            self._looking = None
            if self.is_stopped:
                self._tell_stop(_nothing_ran())

    def use_model(self, model: Model) -> None:
        """Another model answers from the next turn on. The caller lets go of the one before."""
        self.model = model
        fresh = make_agent(model, self.folder, self.face.heard, self._approved)
        agent = self.conversation.agent
        agent.model, agent.tools, agent.instructions = fresh.model, fresh.tools, fresh.instructions


def _nothing_ran() -> StopReport:
    return StopReport("chat", _PRESSED, 0.0, (), 0)


def explained(error: BaseException) -> str:
    """An error for people: what our own say is meant for them, others are named."""
    text = printed(of_error(error))
    return (
        text
        if isinstance(error, (AgentsException, ModelError, UnknownModel, OSError)) and text
        else f"{type(error).__name__}: {text}"
    )
