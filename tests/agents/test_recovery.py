"""Whatever event a log ends with, it adds up to a conversation that can go on."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce.agents.store import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    ItemAdded,
    ItemPopped,
    ItemsCleared,
    MessageQueued,
    RunEnded,
    RunStarted,
    Snapshot,
    StatusChanged,
    ToolStarted,
    UnknownEvent,
    UsageAdded,
    decode_event,
    encode_event,
)
from quiesce.agents.store.memory import MemoryStore
from quiesce.agents.store.replay import Recovered, completed, items_of, recover
from quiesce.models import (
    AssistantMessage,
    Item,
    Note,
    Reasoning,
    ToolCall,
    ToolResult,
    UnknownItem,
    Usage,
    UserMessage,
)

T = TypeVar("T")


class Run:
    """Writes the events of a run as an engine does, and may stop anywhere: each choice is hypothesis' own."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.events: list[Event] = []
        self.calls = 0

    def choose(self, *options: T) -> T:
        return self._data.draw(st.sampled_from(options))

    def count(self, most: int) -> int:
        return self._data.draw(st.integers(0, most))

    def item(self, item: Item) -> None:
        self.events.append(ItemAdded(item=item))

    def conversation(self) -> list[Event]:
        for number in range(self.count(3)):
            self.item(UserMessage(f"question {number}"))
            self.run(f"r{number}")
        return self.events

    def run(self, run_id: str) -> None:
        self.events.append(RunStarted(run_id=run_id))
        for _ in range(self.count(3)):
            self.turn(run_id)
        self.item(AssistantMessage("done"))
        self.events.append(RunEnded(run_id=run_id, status="finished"))

    def turn(self, run_id: str) -> None:
        calls: list[ToolCall] = []
        for _ in range(self.count(4)):
            said = self.choose(
                Reasoning("hm"), AssistantMessage("well"), UnknownItem({"type": "newer"}), None
            )
            if said is not None and not (calls and isinstance(said, UnknownItem)):
                self.item(said)
            self.calls += 1
            # Some models number the calls of each turn anew.
            call = ToolCall(
                f"{self.choose('call', run_id)}_{self.calls if self.choose(0, 1) else len(calls)}", "tool"
            )
            if any(call.call_id == other.call_id for other in calls):
                continue
            calls.append(call)
            self.item(call)
        self.events.append(UsageAdded(usage=Usage(requests=1, input_tokens=2)))
        ended: list[ToolCall] = []
        for call in calls:
            if self.choose(False, False, True):
                self.events.append(ApprovalRequested(call_id=call.call_id))
                approved = self.choose(True, False)
                self.events.append(ApprovalDecided(call_id=call.call_id, approved=approved))
                if not approved:
                    ended.append(call)
                    continue
            self.events.append(ToolStarted(call_id=call.call_id))
            if self.choose(True, False):
                self.events.append(MessageQueued(message_id=f"m{self.calls}", item=UserMessage("also")))
            ended.append(call)
        for call in sorted(ended, key=lambda call: self.count(9)):  # as they finish
            self.item(ToolResult(call.call_id, "out"))


def assert_valid(items: list[Item]) -> None:
    """Each block of calls is followed at once by exactly one result for each of them, in the same order."""
    place = 0
    while place < len(items):
        block: list[str] = []
        while place < len(items) and isinstance(call := items[place], ToolCall):
            block.append(call.call_id)
            place += 1
        results: list[str] = []
        while place < len(items) and isinstance(result := items[place], ToolResult):
            results.append(result.call_id)
            place += 1
        assert results == block
        if not block and place < len(items):
            place += 1


def told(items: list[Item]) -> Counter[str]:
    return Counter(str(item) for item in items)


@settings(max_examples=60)
@given(st.data())
def test_any_prefix_of_any_log_becomes_a_valid_transcript(data: st.DataObject) -> None:
    events = Run(data).conversation()
    prefix = events[: data.draw(st.integers(0, len(events)))]
    found = recover(prefix)
    whole = found.complete()
    assert_valid(whole)
    assert completed(whole) == whole  # once is enough
    # Nothing was lost, and nothing was added but results for calls that had none.
    assert found.items == items_of(prefix)
    assert not told(found.items) - told(whole)
    added = told(whole) - told(found.items)
    assert sum(added.values()) == len(found.unanswered)
    assert len(found.unanswered) == len(found.results) + len(found.awaiting_approval)
    started = last_started(prefix)
    for result in found.results:
        assert result.outcome == ("unknown" if result.call_id in started else "not_started")
    assert recover([*prefix, *(ItemAdded(item=result) for result in found.results)]).results == []


def last_started(events: list[Event]) -> set[str]:
    """The ids of calls that had started, of those that were asked for last."""
    started: set[str] = set()
    for event in events:
        if isinstance(event, ItemAdded) and isinstance(event.item, ToolCall):
            started.discard(event.item.call_id)
        elif isinstance(event, ToolStarted):
            started.add(event.call_id)
    return started


anything: st.SearchStrategy[Event] = st.one_of(
    *(
        st.sampled_from(["a", "b", "c"]).map(make)
        for make in (
            lambda name: ItemAdded(item=ToolCall(name, "tool")),
            lambda name: ItemAdded(item=ToolResult(name, "out")),
            lambda name: ItemAdded(item=UserMessage(name)),
            lambda name: ItemAdded(item=AssistantMessage(name)),
            lambda name: ItemAdded(item=AssistantMessage(name), back="_abc".index(name)),
            lambda name: ToolStarted(call_id=name),
            lambda name: ApprovalRequested(call_id=name),
            lambda name: ApprovalDecided(call_id=name, approved=True),
            lambda name: RunStarted(run_id=name),
            lambda name: RunEnded(run_id=name, status="finished"),
            lambda name: UnknownEvent(data={"event": "newer", "name": name}),
        )
    ),
    st.just(ItemPopped()),
    st.just(ItemsCleared()),
)


@given(st.lists(anything, max_size=25))
def test_even_a_log_that_makes_no_sense_becomes_a_valid_transcript(events: list[Event]) -> None:
    found = recover(events)
    whole = found.complete()
    assert_valid(whole)
    calls = [item for item in found.items if isinstance(item, ToolCall)]
    assert [item for item in whole if isinstance(item, ToolCall)] == calls
    assert [item for item in whole if isinstance(item, UserMessage)] == [
        item for item in found.items if isinstance(item, UserMessage)
    ]


@settings(max_examples=25)
@given(st.data())
def test_a_log_adds_up_to_the_same_when_it_was_written_and_read(data: st.DataObject) -> None:
    events = Run(data).conversation()
    log = MemoryStore().open("a")
    log.append_sync([decode_event(encode_event(event)) for event in events])
    assert recover(log.read_sync()) == recover(events)


CALLS: list[Event] = [
    RunStarted(run_id="r1"),
    ItemAdded(item=UserMessage("pay and tell")),
    ItemAdded(item=ToolCall("c1", "pay")),
    ItemAdded(item=ToolCall("c2", "tell")),
]


def outcomes(found: Recovered) -> list[tuple[str, str]]:
    return [(result.call_id, result.outcome) for result in found.results]


def test_a_tool_that_had_started_is_unknown_and_one_that_had_not_is_not_started() -> None:
    found = recover([*CALLS, ToolStarted(call_id="c1")])
    assert outcomes(found) == [("c1", "unknown"), ("c2", "not_started")]
    assert "its outcome is unknown" in found.results[0].output
    assert found.unfinished_run == "r1"


def test_a_result_that_came_first_stands_behind_the_one_that_is_made_up_for_the_call_before() -> None:
    found = recover(
        [
            *CALLS,
            ToolStarted(call_id="c1"),
            ToolStarted(call_id="c2"),
            ItemAdded(item=ToolResult("c2", "told")),
        ]
    )
    assert outcomes(found) == [("c1", "unknown")]
    assert [getattr(item, "call_id", "") for item in found.complete()] == ["", "c1", "c2", "c1", "c2"]


def test_a_call_that_waits_for_approval_still_waits() -> None:
    waiting = recover([*CALLS, ApprovalRequested(call_id="c1")])
    assert [call.call_id for call in waiting.awaiting_approval] == ["c1"]
    assert waiting.decided == {}
    assert outcomes(waiting) == [("c2", "not_started")]
    assert_valid(waiting.complete())

    decision = ApprovalDecided(call_id="c1", approved=True, message="go")
    approved = recover([*CALLS, ApprovalRequested(call_id="c1"), decision])
    assert [call.call_id for call in approved.awaiting_approval] == ["c1"]
    assert approved.decided == {"c1": decision}

    started = recover([*CALLS, ApprovalRequested(call_id="c1"), decision, ToolStarted(call_id="c1")])
    assert started.awaiting_approval == []
    assert started.decided == {}
    assert outcomes(started)[0] == ("c1", "unknown")


def test_a_queued_message_waits_until_it_is_an_item() -> None:
    queued: Event = MessageQueued(message_id="m1", item=UserMessage("wait"))
    assert recover([queued]).queued == {"m1": UserMessage("wait")}
    taken = recover([queued, ItemAdded(item=UserMessage("wait"), message_id="m1")])
    assert taken.queued == {}
    assert taken.items == [UserMessage("wait")]


def test_a_message_is_said_after_what_waits_for_approval_only_while_nothing_runs() -> None:
    run: list[Event] = [
        RunStarted(run_id="r"),
        ItemAdded(item=ToolCall("c", "pay")),
        ApprovalRequested(call_id="c"),
    ]
    queued = MessageQueued(message_id="m", item=UserMessage("wait"))
    ended = RunEnded(run_id="r", status="waiting_for_approval")
    assert recover([*run, ended, queued]).superseded
    assert not recover([*run, queued, ended]).superseded
    assert not recover([queued, *run, ended]).superseded


def test_what_is_removed_from_a_transcript_is_not_counted_as_kept_by_its_snapshot() -> None:
    said = Snapshot(items=[UserMessage("a"), AssistantMessage("b")])
    assert recover([said]).in_snapshot == 2
    assert recover([said, ItemAdded(item=UserMessage("c"))]).in_snapshot == 2
    assert recover([said, ItemPopped()]).in_snapshot == 1
    assert recover([said, ItemPopped(), ItemAdded(item=UserMessage("c"))]).in_snapshot == 1
    assert recover([said, ItemsCleared()]).in_snapshot == 0
    assert recover([said, ItemAdded(item=UserMessage("c"), back=1)]).in_snapshot == 1


def test_status_usage_and_run_are_the_last_ones_and_the_sum() -> None:
    found = recover(
        [
            RunStarted(run_id="r1"),
            UsageAdded(usage=Usage(requests=1, input_tokens=10)),
            RunEnded(run_id="r1", status="finished"),
            StatusChanged(status="idle"),
            RunStarted(run_id="r2"),
            StatusChanged(status="running"),
            UsageAdded(usage=Usage(requests=1, input_tokens=5, unreported=1)),
        ]
    )
    assert (found.status, found.unfinished_run, found.last_seq) == ("running", "r2", 7)
    assert found.usage == Usage(requests=2, input_tokens=15, unreported=1)


def test_an_empty_log_is_a_new_conversation() -> None:
    assert recover([]) == Recovered()


def test_the_usage_of_an_event_is_not_added_to() -> None:
    event = UsageAdded(usage=Usage(requests=1))
    recover([event, event])
    assert event.usage == Usage(requests=1)


def test_what_the_model_said_between_two_calls_of_a_turn_goes_before_them() -> None:
    first, second = ToolCall("c1", "a"), ToolCall("c2", "b")
    between, answer = AssistantMessage("and also"), ToolResult("c1", "one")
    last = ToolResult("c2", "two")
    assert completed([first, between, second, answer, last]) == [between, first, second, answer, last]
    assert completed([first, answer, between, second, last]) == [first, answer, between, second, last]


@pytest.mark.parametrize("stray", [ToolResult("c9", "?"), ToolResult("c1", "again")])
def test_a_result_of_no_call_and_a_second_result_are_left_out(stray: Any) -> None:
    call, result = ToolCall("c1", "a"), ToolResult("c1", "one")
    assert completed([UserMessage("go"), call, result, stray, Note("hm")]) == [
        UserMessage("go"),
        call,
        result,
        Note("hm"),
    ]


def test_text_that_waited_for_its_guardrails_stands_where_it_was_said() -> None:
    first, second, told = UserMessage("go"), ToolCall("c1", "pay"), ToolResult("c1", "paid")
    events = [
        *(ItemAdded(item=item) for item in (first, second, told)),
        ItemAdded(item=AssistantMessage("I pay."), back=2),
        ItemAdded(item=AssistantMessage("Paid.")),
    ]
    found = recover(events)
    assert found.items == [first, AssistantMessage("I pay."), second, told, AssistantMessage("Paid.")]
    assert items_of(events) == found.items == found.complete()
    too_far = ItemAdded(item=AssistantMessage("I pay."), back=9)  # of a log whose beginning was cleared
    assert recover([*events[:1], too_far]).items == [AssistantMessage("I pay."), first]


def test_a_result_that_was_taken_back_leaves_its_tool_unknown() -> None:
    found = recover(
        [*CALLS[:3], ToolStarted(call_id="c1"), ItemAdded(item=ToolResult("c1", "paid")), ItemPopped()]
    )
    assert outcomes(found) == [("c1", "unknown")]


def test_an_id_that_is_used_again_after_its_call_was_answered_is_another_call() -> None:
    again = [ItemAdded(item=ToolCall("c1", "pay")), ItemAdded(item=ToolResult("c1", "one"))]
    found = recover([*again, ItemAdded(item=AssistantMessage("more")), again[0]])
    assert outcomes(found) == [("c1", "not_started")]
    items = found.complete()
    assert [pair for pair in pairwise(items) if isinstance(pair[0], ToolCall)] == [
        (ToolCall("c1", "pay"), ToolResult("c1", "one")),
        (ToolCall("c1", "pay"), found.results[0]),
    ]


def test_an_id_that_is_used_again_though_its_call_was_never_answered_is_another_call() -> None:
    call, result = ItemAdded(item=ToolCall("c1", "pay")), ItemAdded(item=ToolResult("c1", "paid"))
    asked = ItemAdded(item=UserMessage("and now?"))
    found = recover([call, ToolStarted(call_id="c1"), asked, call, result])
    assert outcomes(found) == [("c1", "unknown")]
    assert found.complete() == [call.item, found.results[0], asked.item, call.item, result.item]


def test_an_approval_is_for_one_call_and_not_for_the_next_of_the_same_id() -> None:
    call, result = ItemAdded(item=ToolCall("c1", "pay")), ItemAdded(item=ToolResult("c1", "paid"))
    decided = ApprovalDecided(call_id="c1", approved=True)
    found = recover([call, ApprovalRequested(call_id="c1"), decided, result, call])
    assert (found.awaiting_approval, found.decided) == ([], {})
    assert outcomes(found) == [("c1", "not_started")]
