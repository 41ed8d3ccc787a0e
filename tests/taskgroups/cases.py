"""CPython's own tests of `asyncio.TaskGroup`, run against `Scope`: `make test-taskgroups`.

The tests come with the interpreter and are imported from it; `adapter.py` stands in for the task group. A case that is listed below
must fail, every other one must pass. docs/words/scope.md has the same differences, for users.
"""

from __future__ import annotations

import asyncio
import sys
import unittest
from asyncio import taskgroups
from collections.abc import Iterator

import pytest

from tests.taskgroups.adapter import TaskGroup

try:
    from test.test_asyncio import test_taskgroups as theirs  # type: ignore[import-not-found, unused-ignore]
except ImportError as error:
    raise ImportError(
        f"{sys.executable} has no test.test_asyncio.test_taskgroups ({error}): distributions leave the tests of Python out "
        "(on Debian they are in libpython3-testsuite). Use an interpreter that has them: PYTHON=... make test-taskgroups"
    ) from error

_CANCEL_FIRST = "the task around is cancelled, and children fail: a scope raises the cancel with their errors as its cause, a group the errors"

# By method: from CPython 3.14 on, one class has them for plain tasks and another for eager ones.
DIFFERING = {
    "test_taskgroup_08": _CANCEL_FIRST,
    "test_taskgroup_11": _CANCEL_FIRST,
    "test_taskgroup_12": _CANCEL_FIRST,
    "test_taskgroup_15": _CANCEL_FIRST,
    "test_taskgroup_16": _CANCEL_FIRST,
    "test_taskgroup_20a": (
        "the body raises a BaseException of its own: a scope raises it as itself, with the children's errors as notes on it, a group in a group"
    ),
}


def _all_in(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from _all_in(item)
        else:
            yield item


CASES = {
    case.id().partition(".test_taskgroups.")[2]: case
    for case in _all_in(unittest.defaultTestLoader.loadTestsFromModule(theirs))
}


@pytest.mark.parametrize("name", CASES)
def test_a_scope_does_as_a_task_group_does_unless_it_is_listed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "TaskGroup", TaskGroup)
    monkeypatch.setattr(taskgroups, "TaskGroup", TaskGroup)
    result = unittest.TestResult()
    CASES[name].run(result)
    assert result.testsRun == 1
    assert not result.skipped
    failures = [text for _, text in (*result.failures, *result.errors)]
    if name.rpartition(".")[2] not in DIFFERING:
        assert not failures, failures[0]
    else:
        assert failures, (
            f"{name} passes: take it from the list, and see whether docs/words/scope.md is still right"
        )


def test_each_case_that_is_listed_is_there() -> None:
    assert DIFFERING.keys() <= {name.rpartition(".")[2] for name in CASES}
