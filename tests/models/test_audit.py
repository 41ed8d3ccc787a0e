"""The model clients, judged by the audit: stopped anywhere, in every way, no connection and no slot of a pool is lost.

How thorough it is depends on `tests.audit_level`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import anthropic._base_client
import openai._base_client
import pytest

from quiesce import shielded
from quiesce.models import (
    Model,
    ModelRequest,
    ModelSettings,
    ModelTimeoutError,
    ResponseDone,
    TextDelta,
    UserMessage,
)
from tests.audit_level import EVERY_POINT, FULL
from tests.kernel.audited import WORLDS, Audited, clock, ledger
from tests.kernel.audited.sampled import assert_nothing_is_left
from tests.models.memory_network import Network, reply
from tests.models.wires import APIS, CHAT, RESPONSES, Api
from tests.world import world_names

pytestmark = [pytest.mark.audit, pytest.mark.time_limit(300)]

HELLO = [UserMessage("Hello")]
networks: list[Network] = []


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of stops made by the audit are not worth a line each."""
    logging.getLogger("quiesce").disabled = True
    yield
    logging.getLogger("quiesce").disabled = False


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's first call looks which system this is, with a thread and a process. The audit's world has neither."""
    for package in (openai._base_client, anthropic._base_client):
        system = package.get_platform()
        package.platform_headers("0", platform=system)  # remembers what it asks the system for

        async def known(system: Any = system) -> Any:
            return system

        monkeypatch.setattr(package, "asyncify", lambda function, known=known: known)


def check() -> None:
    """After a run: no connection is open, and no slot is taken."""
    left = [(network.open_lines, network.slots_taken) for network in networks]
    networks.clear()
    ledger.check()
    assert not any(sum(each) for each in left), f"open connections and taken slots: {left}"


@asynccontextmanager
async def asked(api: Api, *replies: list[bytes], **options: object) -> AsyncIterator[Model]:
    """A model on a network in memory, with one connection."""
    ledger.start()
    network = Network(*replies)
    networks.append(network)
    http_client = network.http_client()
    try:
        yield api.model("http://model", http_client=http_client, **options)
        ledger.expect(network.slots_taken == 0, "a slot is taken though the call is over")
    finally:
        await shielded(http_client.aclose)


async def answer_to_its_end(api: Api) -> None:
    async with asked(api, reply(api.text("Hel", "lo")), reply(api.text("again"))) as model:
        for _ in range(2):
            events = [event async for event in model.stream(ModelRequest(HELLO))]
            ledger.expect(isinstance(events[-1], ResponseDone), "the answer is not whole")


async def answer_left_in_the_middle(api: Api) -> None:
    async with asked(api, reply(api.text("Hel", "lo"), whole=False), reply(api.text("again"))) as model:
        for _ in range(2):
            async with aclosing(model.stream(ModelRequest(HELLO))) as answer:
                async for event in answer:
                    if isinstance(event, TextDelta):
                        break


async def answer_that_takes_too_long(api: Api) -> None:
    settings = ModelSettings(timeout=clock.seconds(2), max_retries=0)
    async with asked(api, reply(api.text("Hel")[:2], whole=False), reply(api.text("again"))) as model:
        try:
            async for _ in model.stream(ModelRequest(HELLO, settings=settings)):
                pass
        except ModelTimeoutError:
            networks[-1].pass_over_all_but_the_last()
            async for _ in model.stream(ModelRequest(HELLO)):
                pass


async def answer_at_the_second_try(api: Api) -> None:
    busy = reply([b"{}"], 429, b"retry-after-ms: 5\r\n")
    async with asked(api, busy, reply(api.text("Hel", "lo"))) as model:
        async for _ in model.stream(ModelRequest(HELLO)):
            pass


async def answer_in_the_background(api: Api) -> None:
    ended = reply([b'{"status": "cancelled"}'], content_type=b"application/json")
    begun = reply(api.text("Hel", "lo"), whole=False)
    async with asked(api, begun, *[ended] * 20, background=True) as model:
        network = networks[-1]
        try:
            async with aclosing(model.stream(ModelRequest(HELLO))) as answer:
                async for event in answer:
                    if isinstance(event, TextDelta):
                        break
        finally:
            # Head and first event have arrived: before that, nobody can know its id.
            if network.requests and len(network.lines[0]._incoming) < len(begun) - 1:
                ledger.expect(len(network.requests) >= 3, f"it was not cancelled there: {network.requests}")


SCENARIOS: list[Callable[[Api], Any]] = [
    answer_to_its_end,
    answer_left_in_the_middle,
    answer_that_takes_too_long,
    answer_at_the_second_try,
    answer_in_the_background,
]


def sweeps() -> list[object]:
    """Each scenario for each API in each world; every scenario, API and world at least once where not all are."""
    found: list[object] = []
    for number, api in enumerate(APIS):
        for other, scenario in enumerate(SCENARIOS):
            if scenario is answer_in_the_background and api is not RESPONSES:
                continue  # the others have no background
            for world in world_names():
                is_part = world == "asyncio" and (api is CHAT or (number + other) % 4 == 2)
                is_part = is_part or (world == "trio" and (number + other) % 4 == 1)
                is_part = is_part or (
                    world != "asyncio" and scenario is answer_left_in_the_middle and api is CHAT
                )
                if FULL or is_part or (EVERY_POINT and world in ("asyncio", "trio")):
                    name = f"{scenario.__name__}-{api.name}-{world}"
                    found.append(pytest.param(api, scenario, world, id=name))
    return found


@pytest.mark.parametrize(("api", "scenario", "where"), sweeps())
def test_stopped_anywhere_nothing_of_a_call_is_left(
    api: Api, scenario: Callable[[Api], Any], where: str
) -> None:
    audited = Audited("model", partial(scenario, api), WORLDS, {}, {}, False, {"check": check})
    # Where time is real, a whole sweep takes minutes.
    for result in [audited.audit(where, depth=1, sample=1)] if where == "uvloop" else audited.audits(where):
        assert_nothing_is_left(result, where)
