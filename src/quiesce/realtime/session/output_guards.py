"""Output guardrails, which check what the model says while it says it.

Invariants
- Each guardrail checks one item in one task at a time. It checks again when there are `debounce_text_length`
  more characters, and once more at the end of the response, if there is text that it has not checked. Text
  that arrives during a check is left for the next one.
- The first guardrail that is triggered interrupts the response, once: nothing more of it is played, and the
  other checks of it are stopped.
- A guardrail that fails becomes an event, and the others go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce import ChildCancelled, Reason, ScopeClosed
from quiesce.kernel.inner import when_ended
from quiesce.realtime.words import (
    RealtimeGuardrailTripped,
    RealtimeModelSendInterrupt,
    RealtimeModelSendUserInput,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quiesce import Handle
    from quiesce.agents import OutputGuardrail, OutputGuardrailResult
    from quiesce.realtime.words import RealtimeAgent

    from .session_state import SessionState


@dataclass(slots=True, eq=False)
class Check:
    """One guardrail for one item."""

    guardrail: OutputGuardrail
    checked: int = 0  # characters
    handle: Handle | None = None  # of the running task


@dataclass(slots=True, eq=False)
class SpokenItem:
    """The text of one item."""

    response_id: str
    agent: RealtimeAgent[Any]
    checks: list[Check]
    text: str = ""


@dataclass(slots=True, eq=False)
class Response:
    """One response."""

    items: dict[str, SpokenItem] = field(default_factory=dict)
    tripped: bool = False
    interrupted: bool = False  # by the user
    ended: bool = False


class OutputGuards:
    """The guardrails of a session, and the responses that they check."""

    def __init__(self, session: SessionState, always: Sequence[OutputGuardrail], debounce: int) -> None:
        self._session = session
        self._always = list(always)
        self._debounce = max(debounce, 1)
        self._responses: dict[str, Response] = {}
        self._latest: str | None = None  # the response that began last

    def response_began(self, response_id: str | None) -> None:
        """Take note of a new response."""
        self._latest = response_id

    def add_text(self, response_id: str, item_id: str, delta: str) -> None:
        """Add text of the model, and start the checks that are due."""
        response = self._responses.get(response_id)
        item = response.items.get(item_id) if response is not None else None
        if item is None:
            agent = self._session.agent_of(response_id).agent
            guardrails = self._guardrails_of(agent)
            if not guardrails:
                return
            if response is None:
                response = self._responses[response_id] = Response()
            item = response.items[item_id] = SpokenItem(
                response_id, agent, [Check(each) for each in guardrails]
            )
        assert response is not None
        if response.tripped:
            return
        # Every guardrail keeps its own position: a slow one must not hold up the others.
        item.text += delta
        length = len(item.text)
        for check in item.checks:
            if check.handle is None and length - check.checked >= self._debounce:
                self._start_check(response, item, check)

    def note_interrupt(self, item_id: str | None) -> None:
        """Take note that the user interrupted an item, or all.

        If it then triggers a guardrail as well, the model need not hear of that.
        """
        for response in self._responses.values():
            if not response.tripped and (item_id is None or item_id in response.items):
                response.interrupted = True

    def _guardrails_of(self, agent: RealtimeAgent[Any]) -> list[OutputGuardrail]:
        # A guardrail that both the agent and the run config list is run once.
        guardrails = [*agent.output_guardrails, *self._always]
        return [each for place, each in enumerate(guardrails) if each not in guardrails[:place]]

    def has_tripped(self, response_id: str) -> bool:
        """Return whether this response is active and has triggered a guardrail."""
        response = self._responses.get(response_id)
        return response is not None and response.tripped and not response.ended

    def response_ended(self, response_id: str | None) -> None:
        """Check the rest of a response that has ended; of all, if the model does not say which."""
        for known, response in list(self._responses.items()):
            if not response.ended and response_id in (None, known):
                self._end(known, response)

    def _end(self, response_id: str, response: Response) -> None:
        response.ended = True
        for item in response.items.values():
            for check in item.checks:
                if check.handle is None and check.checked < len(item.text) and not response.tripped:
                    self._start_check(response, item, check)
        self._forget(response_id, response)

    def _start_check(self, response: Response, item: SpokenItem, check: Check) -> None:
        try:
            handle = self._session.work.spawn(
                self._judge, response, item, check, name=f"guardrail {check.guardrail.get_name()}"
            )
        except ScopeClosed:
            return
        if not handle.done:  # an eager task may have ended
            check.handle = handle
        when_ended(handle, partial(self._check_ended, response, item, check, handle))

    def _check_ended(self, response: Response, item: SpokenItem, check: Check, handle: Handle) -> None:
        # Called in the task's last step, so that text from now on starts another check; or without any step,
        # if the task was cancelled before its first.
        if check.handle is handle:
            check.handle = None
        if handle.state == "cancelled" and not response.tripped and not self._session.closing:
            self._session.failed(ChildCancelled(handle.name, handle.reason))
        self._forget(item.response_id, response)

    async def _judge(self, response: Response, item: SpokenItem, check: Check) -> None:
        session = self._session
        while not response.tripped:
            text = item.text
            check.checked = len(text)
            try:
                # Guardrails expect an `Agent`. A RealtimeAgent has the name, which is what they use.
                result = await check.guardrail.run(session.context, item.agent, text)  # type: ignore[arg-type]
            except Exception as error:
                if session.closing:
                    raise
                session.failed(error)
            else:
                if result.output.tripwire_triggered and not response.tripped:
                    await self._trip(response, item, check, result)
                    return
            more = len(item.text) - check.checked
            if more < (1 if response.ended else self._debounce):
                return

    async def _trip(
        self, response: Response, item: SpokenItem, check: Check, result: OutputGuardrailResult
    ) -> None:
        session, response_id = self._session, item.response_id
        response.tripped = True
        why = Reason("error", f"guardrail {check.guardrail.get_name()} was triggered")
        for other in (each for spoken in response.items.values() for each in spoken.checks):
            if other is not check and other.handle is not None:
                other.handle.cancel(why)
        # The interrupt below takes a moment. Until then, nothing of the response may reach the user.
        for item_id in response.items:
            session.blocked_items.add(item_id)
        session.buffer.drop_audio(lambda audio: audio.response_id == response_id)
        session.add(RealtimeGuardrailTripped([result], item.text, session.info))
        await session.send(RealtimeModelSendInterrupt(force_response_cancel=True, response_id=response_id))
        # Otherwise the conversation has gone on, and the message would interrupt another topic.
        if self._latest in (None, response_id) and not response.interrupted:
            name = check.guardrail.get_name()
            await session.send(RealtimeModelSendUserInput(f"guardrail triggered: {name}"))

    def _forget(self, response_id: str, response: Response) -> None:
        is_checking = any(
            check.handle is not None for item in response.items.values() for check in item.checks
        )
        if response.ended and not is_checking:
            self._responses.pop(response_id, None)

    def clear(self) -> None:
        """Forget all responses, at the end of the session."""
        self._responses.clear()
