"""Closing an owner again: what had run out of time below it gets its ladder again too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quiesce import Scope
from quiesce.kernel._process import Process
from quiesce.kernel._tree import Tree
from tests.kernel.processes import running, token_of_processes

pytestmark = pytest.mark.real_time


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


async def test_closing_an_owner_again_reaches_the_process_that_had_expired_in_it(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = await Scope.open()
    process = await Process.open(["sleep", token], scope=scope)
    with monkeypatch.context() as patch:
        patch.setattr(Tree, "signal", lambda tree, number: None)
        assert not (await scope.close(deadline=0.05)).clean
    try:
        assert (await scope.close(deadline=0.5)).clean
    finally:
        await process.close(deadline=0.5)
    assert running(token) == []
