"""Scenarios of agents and clients, for the audit to stop at every point. `SCENARIOS` is all of them.

Beside what the ledger knows (every clean-up that began came to its end), each run must leave connections that are settled, in which no call
waits and no turn is on; that have answered exactly what they were asked, once; and no prompt with an error, whatever has stopped it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from quiesce import Scope
from quiesce.acp import (
    PROTOCOL_VERSION,
    AgentSideConnection,
    ClientSideConnection,
    PromptResponse,
    RequestError,
    StreamEvent,
    run_agent,
)
from quiesce.acp.schema import (
    AllowedOutcome,
    CloseSessionResponse,
    LoadSessionResponse,
    RequestPermissionResponse,
)
from quiesce.wire import ConnectionEnded, memory_pair
from tests.acp.pairs import HELLO, AClient, AnAgent, Lines, cancel, prompt
from tests.kernel.audited import WORLDS, Audited, clock, ledger, pause, work

SCENARIOS: list[Audited] = []


class Watched:
    """The connections of a run, and what each was asked and has answered."""

    def __init__(self) -> None:
        self.sides: list[tuple[Any, Counter[Any], Counter[Any]]] = []
        self.errors: list[Any] = []

    def start(self) -> None:
        """A new run."""
        ledger.start()
        self.__init__()  # type: ignore[misc]

    def options(self, who: Any) -> dict[str, Any]:
        """What a connection is made with, so that it is watched; `who` is the agent or client that gets it."""
        asked: Counter[Any] = Counter()
        answered: Counter[Any] = Counter()
        prompts: set[Any] = set()

        def observe(event: StreamEvent) -> None:
            message = event.message
            if event.direction == "incoming" and "method" in message and "id" in message:
                asked[message["id"]] += 1
                if message["method"] == "session/prompt":
                    prompts.add(message["id"])
            elif event.direction == "outgoing" and "method" not in message:
                answered[message["id"]] += 1
                error = message.get("error")
                if error and message["id"] in prompts and "InjectedError" not in str(error):
                    self.errors.append(error)  # that one is the audit's own

        self.sides.append((who, asked, answered))
        return {"observers": [observe]}

    def check(self) -> None:
        """After a run: nothing is half done."""
        for who, asked, answered in self.sides:
            side = getattr(who, "client", None) or getattr(who, "agent", None)
            if side is None or not side._connection.started:
                continue
            connection = side._connection
            ledger.expect(side._peer._held().core.is_settled(), f"{side} is not settled")
            ledger.expect(len(connection.calls) == 0, f"{len(connection.calls)} calls of {side} wait")
            ledger.expect(
                asked == answered, f"{side} was asked {dict(asked)} and has answered {dict(answered)}"
            )
            ledger.expect(not connection.requests._open, f"{side} has open requests")
            if isinstance(side, ClientSideConnection):
                ledger.expect(not side._prompting, "a prompt waits")
        ledger.expect(not self.errors, f"a prompt was answered with {self.errors}")
        self.__init__()  # type: ignore[misc]
        ledger.check()


watched = Watched()


def audited(word: str, **options: Any) -> Callable[[Any], Any]:
    def take(function: Any) -> Any:
        SCENARIOS.append(Audited(word, function, WORLDS, {}, {}, False, {"check": watched.check, **options}))
        return function

    return take


class Worker(AnAgent):
    """An agent that tells, works and asks; and tidies up when it is stopped."""

    async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
        await self.say(session_id, "on it")
        await work(1)
        if (await self.ask(session_id)).outcome.outcome == "cancelled":
            return PromptResponse(stop_reason="cancelled")
        return PromptResponse(stop_reason="end_turn")

    async def load_session(self, session_id: str, **kwargs: Any) -> LoadSessionResponse:
        for number in range(3):
            await self.say(session_id, str(number))
            await pause(0.1)
        return LoadSessionResponse()

    async def close_session(self, session_id: str, **kwargs: Any) -> CloseSessionResponse:
        await pause(0.1)
        return CloseSessionResponse()

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        await pause(0.1)


class User(AClient):
    """A client that thinks before it allows anything, and takes its time for updates."""

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        await pause(0.1)

    async def request_permission(self, session_id: str, **kwargs: Any) -> RequestPermissionResponse:
        await pause(0.5)
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id="yes"))


@asynccontextmanager
async def both(agent: AnAgent | None = None) -> AsyncIterator[ClientSideConnection]:
    """Both ends; what a stopped end fails with is no error of the scenario."""
    one, other = memory_pair()
    worker, user = agent or Worker(), User()
    async with (
        AgentSideConnection(worker, one, listening=False, **watched.options(worker)),
        ClientSideConnection(user, other, listening=False, **watched.options(user)) as client,
    ):
        with suppress(ConnectionEnded, RequestError):
            yield client


# The agent's end --------------------------------------------------------------------------------------------------


async def talk(lines: Lines) -> None:
    """A client line by line: a turn, which it cancels, and another, in the middle of which it goes."""
    with suppress(BrokenPipeError, EOFError):
        await lines.send(prompt(1))
        await pause(0.5)
        await lines.send(cancel(), prompt(2))
        await lines.answer(1)
        await pause(0.5)
    lines.hang_up()


@audited("run_agent")
async def run_agent_until_its_client_goes() -> None:
    watched.start()
    one, other = memory_pair()
    agent = Worker()
    async with Scope("client") as scope:
        scope.spawn(talk, Lines(other))
        with anyio.move_on_after(clock.seconds(10)):  # should somebody have cancelled the client
            await run_agent(agent, one, **watched.options(agent))


@audited("run_agent")
async def run_agent_out_of_time() -> None:
    watched.start()
    one, other = memory_pair()
    lines, agent = Lines(other), Worker()
    await lines.send(prompt(1))
    with anyio.move_on_after(clock.seconds(0.5)):
        await run_agent(agent, one, **watched.options(agent))


@audited("AgentSideConnection")
async def an_agents_end_that_is_closed_by_somebody_else() -> None:
    watched.start()
    one, other = memory_pair()
    lines, agent = Lines(other), Worker()
    async with AgentSideConnection(agent, one, listening=False, **watched.options(agent)) as connection:

        async def close() -> None:
            await pause(0.5)
            ledger.report(await connection.close())

        async with Scope("closers") as closers:
            closing = closers.spawn(close)
            with suppress(BrokenPipeError):
                await lines.send(prompt(1, "a"), prompt(2, "b"))
            await closing.wait()


@audited("AgentSideConnection")
async def an_agents_end_that_is_closed_by_its_own_handler() -> None:
    watched.start()

    class Closing(Worker):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            await pause(0.2)
            await self.client.close()
            return PromptResponse(stop_reason="end_turn")

    one, other = memory_pair()
    lines, agent = Lines(other), Closing()
    connection = AgentSideConnection(agent, one, listening=False, **watched.options(agent))
    await lines.send(prompt(1))
    with anyio.move_on_after(clock.seconds(10)):  # should its handler have failed before
        await connection.listen()


# Both ends -----------------------------------------------------------------------------------------------------------


@audited("ClientSideConnection")
async def a_turn_with_a_permission() -> None:
    watched.start()
    async with both() as client:
        await client.initialize(protocol_version=PROTOCOL_VERSION)
        session = await client.new_session(cwd="/project", mcp_servers=[])
        answer = await client.prompt(session.session_id, HELLO)
        ledger.expect(answer.stop_reason in ("end_turn", "cancelled"), f"the turn ended {answer.stop_reason}")


@audited("ClientSideConnection")
async def a_session_that_is_loaded() -> None:
    watched.start()
    async with both() as client:
        await client.load_session("/project", "s")


@audited("ClientSideConnection")
async def a_clients_end_opened_here_and_closed_there() -> None:
    watched.start()
    one, other = memory_pair()
    worker, user = Worker(), User()
    async with Scope("both") as scope:
        agent_side = AgentSideConnection(worker, one, scope=scope, **watched.options(worker))
        client = ClientSideConnection(user, other, scope=scope, **watched.options(user))

        async def close() -> None:
            await pause(0.7)
            ledger.report(await client.close())
            ledger.report(await agent_side.close())

        closing = scope.spawn(close)
        with suppress(ConnectionEnded):
            await client.prompt("s", HELLO)
        await closing.wait()


@audited("cancel")
async def a_turn_that_its_client_cancels() -> None:
    watched.start()
    async with both() as client, Scope("callers", on_error="report") as callers:
        turn = callers.spawn(client.prompt, "s", HELLO)
        await pause(1.2)  # it waits for a permission by now
        await client.cancel("s")
        await turn.wait()


@audited("cancel")
async def a_prompt_that_is_given_up_and_another() -> None:
    watched.start()
    async with both() as client:
        with anyio.move_on_after(clock.seconds(0.5)):
            await client.prompt("s", HELLO)
        await client.prompt("s", HELLO)


@audited("cancel")
async def a_session_that_is_closed_in_the_middle_of_a_turn() -> None:
    watched.start()
    async with both() as client, Scope("callers", on_error="report") as callers:
        callers.spawn(client.prompt, "s", HELLO)
        await pause(0.5)
        await client.close_session("s")
