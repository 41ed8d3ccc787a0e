"""What type checkers infer of the events of a run, and of those that were decoded. Not run: `make lint` reads it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, assert_type

from quiesce import Leftover, Outcome, Reason, StopReport, Stream
from quiesce.agents import (
    Agent,
    AgentUpdatedStreamEvent,
    RawResponseEvent,
    RemoteAgent,
    RunItemStreamEvent,
    StreamEvent,
    UnknownStreamEvent,
    decode_stream_event,
    encode_stream_event,
)
from quiesce.asgi import sse_events


def the_agent_of_a_run_is_an_agent(event: StreamEvent) -> Agent[Any] | None:
    if isinstance(event, AgentUpdatedStreamEvent):
        assert_type(event.new_agent, Agent[Any])
        return event.new_agent
    return None


def what_was_decoded_is_one_of_four(text: str) -> str:
    event = decode_stream_event(text)
    if isinstance(event, AgentUpdatedStreamEvent):
        assert_type(event.new_agent, RemoteAgent)
        return event.new_agent.name
    assert_type(event, RawResponseEvent | RunItemStreamEvent | UnknownStreamEvent)
    return encode_stream_event(event)


def the_type_of_an_event_tells_which_it_is(event: StreamEvent) -> None:
    if event.type == "agent_updated_stream_event":
        assert_type(event, AgentUpdatedStreamEvent[Agent[Any]])


def an_event_for_a_run_has_an_agent(agent: Agent[Any]) -> StreamEvent:
    return AgentUpdatedStreamEvent(agent)


def one_that_was_decoded_is_not_one_of_a_run(remote: RemoteAgent) -> StreamEvent:
    return AgentUpdatedStreamEvent(remote)  # type: ignore[arg-type]


def the_records_of_a_run_are_texts(events: Stream[StreamEvent], others: AsyncGenerator[int, None]) -> None:
    assert_type(sse_events(events, encode_stream_event, end="end"), Stream[str])
    assert_type(sse_events(others), Stream[str])
    sse_events(others, encode_stream_event)  # type: ignore[arg-type]


def plain_data_gives_the_class_that_is_asked_for(data: dict[str, Any]) -> None:
    assert_type(StopReport.from_dict(data), StopReport)
    assert_type(Reason.from_dict(data), Reason)
    assert_type(Leftover.from_dict(data), Leftover)
    assert_type(Outcome.from_dict(data), Outcome)
    assert_type(Outcome.from_dict(data).to_dict(), dict[str, Any])
