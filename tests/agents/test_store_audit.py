"""Stores, judged by the audit: an append or a read is stopped in every way at every point, and nothing is left or half done."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.agents.store import Store
from quiesce.agents.store.memory import MemoryStore
from quiesce.agents.store.session import LogSession
from quiesce.agents.store.sqlite import SQLiteStore
from quiesce.audit import audit
from quiesce.models import UserMessage
from tests.agents.test_store import message, said
from tests.audit_level import EVERY_POINT, FULL
from tests.kernel.audited import unwatched
from tests.world import world_names

pytestmark = [pytest.mark.audit, pytest.mark.time_limit(300)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The kernel logs what nobody looked at, and here that is errors made by the audit."""
    logging.getLogger("quiesce").disabled = True
    yield
    logging.getLogger("quiesce").disabled = False


class Audited:
    """A fresh store for each run, and what must hold after it: every append is there in full, or not at all."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.runs = 0
        self.acknowledged = 0
        self.kept = MemoryStore()

    def open(self) -> Store:
        self.runs += 1
        self.acknowledged = 0
        self.kept = MemoryStore()
        return self.kept if self.kind == "memory" else SQLiteStore(self.path)

    @property
    def path(self) -> Path:
        return self.directory / f"{self.runs}.db"

    def check(self) -> None:
        if self.kind == "memory":
            texts = said(self.kept.open("a").read_sync())
        else:
            with SQLiteStore(self.path) as store:
                texts = said(store.open("a").read_sync())
            for file in self.directory.iterdir():
                file.unlink()
        acknowledged, self.acknowledged = self.acknowledged, 0  # the next run may be stopped before it begins
        assert len(texts) % 2 == 0, texts
        assert len(texts) >= acknowledged, (texts, acknowledged)

    async def write_and_read(self) -> None:
        store = self.open()
        try:
            log = store.open("a")
            for number in range(2):
                self.acknowledged = await log.append([message(f"{number}a"), message(f"{number}b")])
            await log.read()
        finally:
            if self.kind == "sqlite":  # what is in memory is looked at afterwards
                await store.close()

    async def share_a_store(self) -> None:
        store = self.open()
        try:
            async with Scope("writers", grace=Grace(cancel=5)) as scope:
                for name in ("a", "b"):
                    scope.spawn(store.open(name).append, [message(name), message(name)])
                session = LogSession(store.open("c"))
                await session.add_items([UserMessage("one"), UserMessage("two")])
                await session.pop_item()
        finally:
            if self.kind == "sqlite":
                await store.close()


def sweeps() -> list[Any]:
    return [
        pytest.param(kind, scenario, world, id=f"{scenario}-{kind}-{world}")
        for kind in ("memory", "sqlite")
        for scenario in ("write_and_read", "share_a_store")
        for world in world_names()
        if FULL or kind == "memory" or world == "asyncio" or (world, scenario) == ("trio", "write_and_read")
    ]


@pytest.mark.parametrize(("kind", "scenario", "where"), sweeps())
def test_stopped_anywhere_nothing_is_left_and_no_append_is_half_there(
    kind: str, scenario: str, where: str, tmp_path: Path
) -> None:
    audited = Audited(kind, tmp_path)
    with unwatched():
        result = audit(
            getattr(audited, scenario),
            backend=where,
            real_io=True,
            check=audited.check,
            stops="all",
            depth=2 if FULL else 1,
            sample=None if EVERY_POINT else 1,
        )
    assert audited.runs > 3
    assert not result.errors, str(result)
    assert result.clean or (not EVERY_POINT and not result.findings), str(result)


def test_the_audit_would_see_an_append_that_is_cut_in_half(tmp_path: Path) -> None:
    audited = Audited("memory", tmp_path)

    async def in_two_halves() -> None:
        log = audited.open().open("a")
        await log.append([message("a")])
        await anyio.sleep(1)
        await log.append([message("b")])

    with unwatched():
        result = audit(in_two_halves, check=audited.check)
    assert {finding.kind for finding in result.findings} == {"check"}
