"""Reports, reasons, outcomes and leftovers as plain data, and back."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce import Leftover, Outcome, Reason, RemoteError, Scope, StopReport
from quiesce.kernel.base.plain_data import LONGEST_TEXT
from quiesce.kernel.base.remote_error import DEEPEST, MOST_ERRORS, MOST_NOTES, error_to_dict
from tests.kernel.temperaments import Stubborn, fails, fails_in_clean_up, sleeper, turns, virtual_worlds


def there_and_back(data: dict[str, Any]) -> dict[str, Any]:
    """The data after it was sent as UTF-8, by an encoder that escapes nothing it need not."""
    sent = json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    received: dict[str, Any] = json.loads(sent)
    assert received == data
    return received


def sent_and_read(report: StopReport) -> StopReport:
    return StopReport.from_dict(there_and_back(report.to_dict()))


def remote(error: BaseException) -> RemoteError:
    found = Outcome.from_dict(there_and_back(Outcome("worker", "failed", error).to_dict())).error
    assert isinstance(found, RemoteError)
    return found


def a_report(**changes: Any) -> StopReport:
    return StopReport(**{"name": "crew", "reason": None, "elapsed": 0.0, "left": (), "ended": 0, **changes})


class Rude(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise LookupError("no text")

    def __repr__(self) -> str:
        raise LookupError("no text")


class Named(str):
    """A text that is not a plain str."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


# The whole report -----------------------------------------------------------------------------------------------


@virtual_worlds
async def test_a_report_prints_the_same_and_is_as_clean_after_it_was_sent() -> None:
    stubborn = Stubborn()
    scope = await Scope.open("crew", on_error="report", on_child_error=lambda handle, error: None)
    scope.spawn(fails, FileNotFoundError(2, "no such file"), name="failed early")
    await turns()
    scope.spawn(sleeper, name="cancelled")
    scope.spawn(fails_in_clean_up, ExceptionGroup("late", [KeyError("x"), ValueError("y")]), name="failed")
    scope.spawn(stubborn, name="stubborn")
    await turns()
    report = await scope.close(deadline=0.5, reason=Reason("error", "enough", OSError("disk full")))
    received = sent_and_read(report)
    assert str(received) == str(report)
    assert [str(outcome) for outcome in received.outcomes] == [str(outcome) for outcome in report.outcomes]
    assert received.left == tuple(report.left)
    assert (received.name, received.elapsed, received.ended) == (report.name, report.elapsed, report.ended)
    assert received.clean is report.clean is False
    assert received.to_dict() == report.to_dict()
    assert received.reason is not None
    assert str(received.reason.error) == "OSError: disk full"
    stubborn.let_go()
    assert not sent_and_read(await scope.close()).left


@virtual_worlds
async def test_a_clean_report_stays_clean() -> None:
    scope = await Scope.open("crew")
    scope.spawn(sleeper)
    await turns()
    report = await scope.close()
    received = sent_and_read(report)
    assert received.clean
    assert str(received) == str(report)


async def test_the_same_error_in_an_outcome_and_among_the_errors_is_one_error_afterwards_too() -> None:
    report = a_report(
        _rows=[("one", "failed", error := ValueError("no")), ("two", "cancelled", None)],
        _failures=[("one", error), ("inner: three", KeyError(3))],
        _failed_while_stopping=1,
    )
    received = sent_and_read(report)
    assert [outcome.name for outcome in received.outcomes] == ["inner: three", "one", "two"]
    assert received.errors == [received.outcomes[1].error, received.outcomes[0].error]
    assert not received.clean


def test_one_error_of_several_children_is_counted_as_often_as_before() -> None:
    error = ValueError("no")
    report = a_report(
        _rows=[("one", "failed", error), ("two", "failed", error)], _failures=[("one", error), ("two", error)]
    )
    assert len(sent_and_read(report).outcomes) == 2
    assert str(sent_and_read(report)) == str(report)


def any_report(
    names: st.SearchStrategy[str], *more_errors: st.SearchStrategy[Exception]
) -> st.SearchStrategy[StopReport]:
    errors = st.one_of(
        st.builds(ValueError, names),
        st.builds(KeyError, names),
        st.builds(OSError, st.integers(0, 200), names),
        st.builds(lambda text: ExceptionGroup("group", [ValueError(text)]), names),
        st.builds(RemoteError, st.sampled_from(["ValueError", "some.module.Error"]), names),
        *more_errors,
    )
    kinds = st.sampled_from(["user", "timeout", "shutdown", "cancelled"])
    return st.builds(
        StopReport,
        name=names,
        reason=st.none() | st.builds(Reason, kinds, names, st.none() | errors),
        elapsed=st.floats(min_value=0) | st.integers(0, 9),
        left=st.lists(st.builds(Leftover, names, names, names, names), max_size=3),
        ended=st.integers(0, 10**20),
        notes=st.lists(names, max_size=3),
        unseen=st.lists(names, max_size=2).map(tuple),
        _rows=st.lists(st.tuples(names, st.sampled_from(["finished", "cancelled"]), st.none()), max_size=3),
        _failures=st.lists(st.tuples(names, errors), max_size=3),
        _failed_while_stopping=st.integers(0, 3),
    )


ANYTHING = st.text(st.characters(), max_size=20)  # lone surrogates too


@given(report=any_report(ANYTHING, st.builds(Rude), st.builds(RemoteError, ANYTHING, ANYTHING)))
def test_any_report_can_be_sent_as_utf_8_and_sent_again_as_it_is(report: StopReport) -> None:
    data = report.to_dict()
    received = StopReport.from_dict(there_and_back(data))
    assert received.to_dict() == data
    assert received.clean == report.clean
    assert len(received.outcomes) == len(report.outcomes)
    assert len(received.errors) == len(report.errors)
    assert str(StopReport.from_dict(received.to_dict())) == str(received)


@given(report=any_report(st.text(max_size=20)))
def test_any_report_prints_the_same_after_it_was_sent(report: StopReport) -> None:
    received = sent_and_read(report)
    assert str(received) == str(report)
    assert [str(outcome) for outcome in received.outcomes] == [str(outcome) for outcome in report.outcomes]


@given(data=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_anything_else_than_a_report_is_a_type_error_or_a_value_error(data: Any) -> None:
    members = (
        "name",
        "reason",
        "elapsed",
        "left",
        "ended",
        "notes",
        "unseen",
        "outcomes",
        "failures",
        "version",
    )
    for member in members:
        try:
            StopReport.from_dict({"name": "crew", member: data})
        except (TypeError, ValueError) as error:
            told = str(error)
        else:
            continue
        assert f"StopReport.{member}" in told


def test_the_data_has_the_members_that_are_documented() -> None:
    report = a_report(
        reason=Reason("user", "enough"),
        elapsed=0.5,
        left=[Leftover("task", "deaf", "app.py:1 in main", "app.py:2 in deaf")],
        ended=3,
        notes=["a note"],
        unseen=("a thread",),
        _rows=[("clumsy", "failed", error := OSError("disk full"))],
        _failures=[("clumsy", error)],
        _failed_while_stopping=1,
    )
    assert report.to_dict() == {
        "version": 1,
        "name": "crew",
        "clean": False,
        "reason": {"kind": "user", "message": "enough", "error": None},
        "elapsed": 0.5,
        "ended": 3,
        "left": [
            {"kind": "task", "name": "deaf", "made_at": "app.py:1 in main", "stuck_at": "app.py:2 in deaf"}
        ],
        "unseen": ["a thread"],
        "outcomes": [
            {"name": "clumsy", "state": "failed", "error": {"type": "OSError", "text": "disk full"}}
        ],
        "failures": [{"name": "clumsy", "outcome": 0}],
        "failed_while_stopping": 1,
        "notes": ["a note"],
    }


def test_parts_of_a_report_are_equal_after_they_were_sent() -> None:
    reason = Reason("timeout", "after 5 s")
    leftover = Leftover("thread", "worker", "app.py:1", "app.py:2")
    outcome = Outcome("worker", "still running")
    assert Reason.from_dict(there_and_back(reason.to_dict())) == reason
    assert Leftover.from_dict(there_and_back(leftover.to_dict())) == leftover
    assert Outcome.from_dict(there_and_back(outcome.to_dict())) == outcome


@pytest.mark.parametrize("elapsed", [math.inf, math.nan])
def test_a_time_without_end_is_sent_as_none(elapsed: float) -> None:
    data = there_and_back(a_report(elapsed=elapsed).to_dict())
    assert data["elapsed"] is None
    assert StopReport.from_dict(data).elapsed == math.inf


def test_only_plain_types_are_in_the_data() -> None:
    data = a_report(name=Named("crew"), elapsed=3, notes=[Named("note")]).to_dict()
    assert [type(data[name]) for name in ("name", "elapsed")] == [str, float]
    assert [type(note) for note in data["notes"]] == [str]


def test_secrets_are_hidden_and_what_utf_8_cannot_express_is_escaped() -> None:
    report = a_report(
        name="crew \udcff", reason=Reason("error", "no", OSError("token=abcdef0123456789 was refused"))
    )
    text = json.dumps(there_and_back(report.to_dict()))
    assert "abcdef0123456789" not in text
    assert sent_and_read(report).name == "crew \\xff"


def test_long_texts_are_cut_once() -> None:
    report = a_report(reason=Reason("error", "x" * 50_000, ValueError("y" * 50_000)), notes=["z" * 50_000])
    data = report.to_dict()
    message = data["reason"]["message"]
    assert len(message) <= LONGEST_TEXT
    assert message.endswith("… (40,040 more characters)")
    assert len(json.dumps(data)) < 6 * LONGEST_TEXT
    assert StopReport.from_dict(data).to_dict() == data


# Newer versions, and damage ---------------------------------------------------------------------------------------


def test_what_a_newer_version_has_added_is_ignored() -> None:
    data = a_report(left=[Leftover("task", "deaf", "a", "b")], reason=Reason("user")).to_dict()
    data["added"] = data["left"][0]["added"] = data["reason"]["added"] = {"anything": 1}
    assert StopReport.from_dict(data).left == (Leftover("task", "deaf", "a", "b"),)


def test_a_name_is_enough_for_a_report() -> None:
    report = StopReport.from_dict({"name": "crew"})
    assert report.clean
    assert str(report) == "scope 'crew' ended: 0 children, nothing left"
    assert Leftover.from_dict({"kind": "task", "name": "x"}) == Leftover("task", "x", "?", "?")


def test_a_kind_of_reason_that_only_a_newer_version_knows_becomes_a_cancel_that_says_so() -> None:
    reason = Reason.from_dict({"kind": "preempted", "message": "spot instance"})
    assert reason.kind == "cancelled"
    assert reason.message == "spot instance (a newer version of quiesce calls this 'preempted')"
    assert Reason.from_dict({"kind": "preempted"}).message.startswith("(a newer version")
    assert Reason.from_dict(reason.to_dict()) == reason


def test_a_state_that_only_a_newer_version_knows_is_kept() -> None:
    report = StopReport.from_dict({"name": "crew", "outcomes": [{"name": "x", "state": "detached"}]})
    assert [outcome.state for outcome in report.outcomes] == ["detached"]
    assert "1 detached" in str(report)


def test_a_report_that_a_newer_version_does_not_call_clean_is_not_clean_here() -> None:
    report = StopReport.from_dict({"name": "crew", "clean": False})
    assert not report.clean
    assert "newer version" in str(report)
    assert StopReport.from_dict(report.to_dict()).to_dict() == report.to_dict()


def test_a_report_with_something_left_is_not_clean_whatever_the_data_says() -> None:
    left = [{"kind": "task", "name": "x"}]
    assert not StopReport.from_dict({"name": "crew", "clean": True, "left": left}).clean


@pytest.mark.parametrize(
    ("data", "kind", "told"),
    [
        ({}, ValueError, "StopReport has no 'name', which must be a str: pass what to_dict"),
        ([], TypeError, "StopReport must be a dict, not list"),
        ("{}", TypeError, "StopReport must be a dict, not str"),
        ({"name": 1}, TypeError, "StopReport.name must be a str, not 1"),
        ({"name": "x", "elapsed": "1"}, TypeError, "StopReport.elapsed must be a number of seconds"),
        ({"name": "x", "elapsed": True}, TypeError, "StopReport.elapsed must be a number of seconds"),
        (
            {"name": "x", "ended": -1},
            ValueError,
            "StopReport.ended must be a whole number, 0 or more, not -1",
        ),
        ({"name": "x", "ended": True}, TypeError, "StopReport.ended must be a whole number"),
        ({"name": "x", "left": {}}, TypeError, "StopReport.left must be a list"),
        ({"name": "x", "left": [{"kind": "task"}]}, ValueError, "StopReport.left[0] has no 'name'"),
        ({"name": "x", "notes": ["a", 2]}, TypeError, "StopReport.notes[1] must be a str, not int"),
        ({"name": "x", "reason": "user"}, TypeError, "StopReport.reason must be a dict, not str"),
        ({"name": "x", "reason": {}}, ValueError, "StopReport.reason has no 'kind'"),
        (
            {"name": "x", "reason": {"kind": "error", "error": {"text": "x"}}},
            ValueError,
            "StopReport.reason.error has no 'type'",
        ),
        (
            {"name": "x", "failures": [{"name": "y", "outcome": 0}]},
            ValueError,
            "StopReport.failures[0].outcome is 0, but there is no outcome with an error in that place",
        ),
        (
            {"name": "x", "version": 2},
            ValueError,
            "StopReport.version is 2, and this version of quiesce reads 1",
        ),
    ],
)
def test_a_wrong_member_is_an_error_that_names_it(data: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind) as raised:
        StopReport.from_dict(data)
    assert told in str(raised.value)


def test_parts_that_are_read_alone_are_named_by_their_class() -> None:
    for part in (Reason, Leftover, Outcome):
        with pytest.raises(ValueError, match=f"^{part.__name__} has no "):
            part.from_dict({})


# Errors -----------------------------------------------------------------------------------------------------------


def test_an_error_is_sent_as_its_type_and_text_with_its_notes() -> None:
    error = ValueError("no")
    error.add_note("while reading x.csv")
    found = remote(error)
    assert (found.type, found.text, found.original_repr) == ("ValueError", "no", "ValueError('no')")
    assert found.__notes__ == ["while reading x.csv"]
    assert str(found) == "ValueError: no"
    assert str(remote(ValueError())) == "ValueError"
    assert isinstance(found, Exception)
    assert error_to_dict(found) == error_to_dict(error)


def test_the_class_of_an_error_is_named_as_in_a_traceback() -> None:
    found = remote(json.JSONDecodeError("no", "x", 0))
    assert found.type == "json.decoder.JSONDecodeError"
    assert str(Outcome("a", "failed", found)) == "a: failed, JSONDecodeError: no: line 1 column 1 (char 0)"


def test_an_error_that_cannot_be_shown_is_sent_with_a_text_that_says_so() -> None:
    found = remote(Rude())
    assert found.type.endswith("Rude")
    assert found.text == "<Rude: its text cannot be read, LookupError was raised>"


def test_an_error_with_odd_notes_is_sent() -> None:
    odd = ValueError("no")
    odd.__notes__ = cast("Any", [1, Named("two"), "three\udc80"])
    assert remote(odd).__notes__ == ["1", "two", "three\\x80"]
    odd.__notes__ = 5  # type: ignore[assignment]
    assert not hasattr(remote(odd), "__notes__")
    odd.__notes__ = ["note"] * 1000
    assert len(remote(odd).__notes__) == MOST_NOTES


def test_the_errors_of_a_group_are_sent_with_it() -> None:
    found = remote(ExceptionGroup("both", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])]))
    assert str(found) == "ExceptionGroup: both (2 sub-exceptions)"
    one, two = found.exceptions
    assert (str(one), two.exceptions[0].type) == ("ValueError: a", "KeyError")


def count(error: RemoteError) -> int:
    return 1 + sum(map(count, error.exceptions))


def test_a_group_without_end_is_cut_in_depth_and_in_number() -> None:
    deep: Exception = ValueError("core")
    for _ in range(5000):
        deep = ExceptionGroup("deeper", [deep])
    found = remote(deep)
    for _ in range(DEEPEST - 1):
        (found,) = found.exceptions
    assert found.exceptions == ()
    wide = ExceptionGroup("wide", [ExceptionGroup("inner", [ValueError(str(n))] * 60) for n in range(60)])
    assert count(remote(wide)) == MOST_ERRORS


def test_data_with_an_error_nested_without_end_is_cut_too() -> None:
    data: dict[str, Any] = {"type": "ValueError"}
    for _ in range(5000):
        data = {"type": "ExceptionGroup", "exceptions": [data]}
    found = Outcome.from_dict({"name": "x", "state": "failed", "error": data}).error
    assert isinstance(found, RemoteError)
    assert count(found) == DEEPEST


# Pickles and copies -----------------------------------------------------------------------------------------------


@virtual_worlds
async def test_a_report_can_be_pickled_and_prints_the_same() -> None:
    scope = await Scope.open("crew", on_error="report", on_child_error=lambda handle, error: None)

    async def local() -> None:
        raise ValueError("no")

    scope.spawn(local)
    scope.spawn(sleeper)
    await turns()
    report = await scope.close()
    found = pickle.loads(pickle.dumps(report))
    assert str(found) == str(report)
    assert [type(error) for error in found.errors] == [RemoteError]
    assert found.to_dict() == report.to_dict()


def test_a_remote_error_can_be_pickled_and_copied() -> None:
    error = remote(ExceptionGroup("both", [ValueError("a")]))
    error.add_note("a note")
    for found in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert error_to_dict(found) == error_to_dict(error)


def test_a_copy_of_a_report_has_the_errors_themselves() -> None:
    report = a_report(_failures=[("worker", error := Rude())], notes=(notes := ["one"]))
    for found in (copy.copy(report), copy.deepcopy(report)):
        assert found is not report
        assert found.errors == [error]
    deep = copy.deepcopy(report)
    notes.append("two")
    assert list(deep.notes) == ["one"]
