"""Output guardrails that look at what the model says while it says it.

Invariants
- Each guardrail looks at one item with one task at a time. It looks when there are so many characters more than the last time
  (`debounce_text_length`), and once at the end of the response at what it has not seen; what comes while it looks, it sees the next time.
- The first one that says no interrupts the response, once: nothing of it is played any more, and the others that look at it are stopped.
- One that fails is an event, and the others go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce import ChildCancelled, Reason, ScopeClosed
from quiesce.kernel.inner import CANCELLED, when_ended
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

    from .session_task import SessionTask


@dataclass(slots=True, eq=False)
class Look:
    """One guardrail, at one item."""

    guardrail: OutputGuardrail
    seen: int = 0  # characters
    handle: Handle | None = None  # of the task that looks now


@dataclass(slots=True, eq=False)
class Said:
    """What was said in one item."""

    response_id: str
    agent: RealtimeAgent[Any]
    looks: list[Look]
    text: str = ""


@dataclass(slots=True, eq=False)
class Response:
    """One response."""

    items: dict[str, Said] = field(default_factory=dict)
    tripped: bool = False
    hushed: bool = False  # the user has interrupted it
    over: bool = False


class OutputGuards:
    """All guardrails of a session, and what they have not yet looked at."""

    def __init__(self, life: SessionTask, always: Sequence[OutputGuardrail], debounce: int) -> None:
        self._life = life
        self._always = list(always)
        self._debounce = max(debounce, 1)
        self._responses: dict[str, Response] = {}
        self._latest: str | None = None  # the response that began last

    def began(self, response_id: str | None) -> None:
        """The model begins a response."""
        self._latest = response_id

    def heard(self, response_id: str, item_id: str, delta: str) -> None:
        """The model has said this."""
        response = self._responses.get(response_id)
        said = response.items.get(item_id) if response is not None else None
        if said is None:
            agent = self._life.cast_of(response_id).agent
            guardrails = self._guardrails_of(agent)
            if not guardrails:
                return
            if response is None:
                response = self._responses[response_id] = Response()
            said = response.items[item_id] = Said(response_id, agent, [Look(each) for each in guardrails])
        assert response is not None
        if response.tripped:
            return
        said.text += delta
        length = len(said.text)
        for look in said.looks:
            if look.handle is None and length - look.seen >= self._debounce:
                self._look(response, said, look)

    def hushed(self, item_id: str | None) -> None:
        """The user has interrupted what is being said, or this of it: that a guardrail says no to it as well is no news for the model."""
        for response in self._responses.values():
            if not response.tripped and (item_id is None or item_id in response.items):
                response.hushed = True

    def _guardrails_of(self, agent: RealtimeAgent[Any]) -> list[OutputGuardrail]:
        guardrails = [*agent.output_guardrails, *self._always]
        return [each for place, each in enumerate(guardrails) if each not in guardrails[:place]]

    def has_tripped(self, response_id: str) -> bool:
        """Whether nothing of this response, which is on, is played any more."""
        response = self._responses.get(response_id)
        return response is not None and response.tripped and not response.over

    def ended(self, response_id: str | None) -> None:
        """The model has ended a response, or does not say which: then all. What nobody has looked at is looked at now."""
        for known, response in list(self._responses.items()):
            if not response.over and response_id in (None, known):
                self._end(known, response)

    def _end(self, response_id: str, response: Response) -> None:
        response.over = True
        for said in response.items.values():
            for look in said.looks:
                if look.handle is None and look.seen < len(said.text) and not response.tripped:
                    self._look(response, said, look)
        self._forget(response_id, response)

    def _look(self, response: Response, said: Said, look: Look) -> None:
        try:
            handle = self._life.work.spawn(
                self._judge, response, said, look, name=f"guardrail {look.guardrail.get_name()}"
            )
        except ScopeClosed:
            return
        if not handle.done:  # an eager one may be over
            look.handle = handle
        when_ended(handle, partial(self._ended_somehow, response, said, look, handle))

    def _ended_somehow(self, response: Response, said: Said, look: Look, handle: Handle) -> None:
        """Told by its last step, so that what is said from here on has another look; or without one, if it was cancelled before its first."""
        if look.handle is handle:
            look.handle = None
        if handle.state == CANCELLED and not response.tripped and not self._life.closing:
            self._life.failed(ChildCancelled(handle.name, handle.reason))
        self._forget(said.response_id, response)

    async def _judge(self, response: Response, said: Said, look: Look) -> None:
        life = self._life
        while not response.tripped:
            text = said.text
            look.seen = len(text)
            try:
                # A guardrail knows its agent by its name; that it is one that speaks makes no difference to it.
                result = await look.guardrail.run(life.context, said.agent, text)  # type: ignore[arg-type]
            except Exception as error:
                if life.closing:
                    raise
                life.failed(error)
            else:
                if result.output.tripwire_triggered and not response.tripped:
                    await self._trip(response, said, look, result)
                    return
            more = len(said.text) - look.seen
            if more < (1 if response.over else self._debounce):
                return

    async def _trip(self, response: Response, said: Said, look: Look, result: OutputGuardrailResult) -> None:
        life, response_id = self._life, said.response_id
        response.tripped = True
        why = Reason("error", f"guardrail {look.guardrail.get_name()} was triggered")
        for other in (each for item in response.items.values() for each in item.looks if each is not look):
            if other.handle is not None:
                other.handle.cancel(why)
        for item_id in response.items:
            life.blocked.add(item_id)
        life.buffer.drop_audio(lambda audio: audio.response_id == response_id)
        life.add(RealtimeGuardrailTripped([result], said.text, life.info))
        await life.send(RealtimeModelSendInterrupt(force_response_cancel=True, response_id=response_id))
        if (
            self._latest in (None, response_id) and not response.hushed
        ):  # else the conversation is elsewhere already
            name = look.guardrail.get_name()
            await life.send(RealtimeModelSendUserInput(f"guardrail triggered: {name}"))

    def _forget(self, response_id: str, response: Response) -> None:
        looking = any(look.handle is not None for said in response.items.values() for look in said.looks)
        if response.over and not looking:
            self._responses.pop(response_id, None)

    def clear(self) -> None:
        """The session has ended."""
        self._responses.clear()
