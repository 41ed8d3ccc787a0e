"""The embedded model, judged by the audit: stopped anywhere, in every way, its server's process is gone.

Each run starts a real process, so that a sweep is a sample: a small one in `make test-all`, a larger one in `make audit`.
"""

from __future__ import annotations

import logging
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quiesce.models import EmbeddedModel, ModelRequest, TextDelta, UserMessage
from quiesce_chat.embedded import server as server_module
from tests.audit_level import FULL
from tests.kernel.audited import WORLDS, Audited, ledger
from tests.models import stand_in_llama
from tests.models.test_audit import no_thread  # noqa: F401
from tests.world import world_names

STOPS = "cancel,twice,thrice,shutdown,scope,timeout,raise"  # what an owner does; its own tasks are the kernel's to cancel
ON_TRIO = "cancel,scope,timeout,raise"

pytestmark = [pytest.mark.audit, pytest.mark.time_limit(300)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Each stop made by the audit is not worth a line."""
    logging.getLogger("quiesce").disabled = True
    yield
    logging.getLogger("quiesce").disabled = False


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Weights for the stand-in, which every server's process then finds instead of the native package."""
    packages = tmp_path / "packages"
    packages.mkdir()
    shutil.copy(stand_in_llama.__file__, packages / "xllamacpp.py")
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    made = tmp_path / "tiny.gguf"
    made.write_text("good")
    return made


def asking(text: str) -> ModelRequest:
    return ModelRequest([UserMessage(text)])


async def opened_and_asked(weights: Path) -> None:
    ledger.start()
    async with EmbeddedModel(weights=weights) as model:
        said = [event async for event in model.stream(asking("hello")) if isinstance(event, TextDelta)]
        ledger.expect("".join(event.text for event in said) == "HELLO", "the answer is another")


async def left_in_the_middle_of_an_answer(weights: Path) -> None:
    ledger.start()
    async with (
        EmbeddedModel(weights=weights) as model,
        aclosing(model.stream(asking("for ever"))) as answer,
    ):
        async for event in answer:
            if isinstance(event, TextDelta):
                break


async def asked_without_being_opened(weights: Path) -> None:
    ledger.start()
    async for _ in EmbeddedModel(weights=weights).stream(asking("hello")):
        pass


SCENARIOS: list[Callable[[Path], Any]] = [
    opened_and_asked,
    left_in_the_middle_of_an_answer,
    asked_without_being_opened,
]


def sweeps() -> list[object]:
    """Each scenario in each world; with the other tests, one in each."""
    worlds = world_names()
    return [
        pytest.param(scenario, world, id=f"{scenario.__name__}-{world}")
        for number, scenario in enumerate(SCENARIOS)
        for other, world in enumerate(worlds)
        if FULL or number % len(worlds) == other
    ]


@pytest.mark.parametrize(("scenario", "where"), sweeps())
def test_stopped_anywhere_no_server_is_left(
    scenario: Callable[[Path], Any], where: str, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "trio":  # there the audit's clock jumps while a process loads
        monkeypatch.setattr(server_module, "STARTED_WITHIN", math.inf)
    audited = Audited(
        "EmbeddedModel",
        partial(scenario, weights),
        WORLDS,
        {"unawaited connect_tcp*": "anyio's own, whose first step never comes if the loop is swept then"},
        {},
        True,
        {"check": ledger.check, "real_io": True},
    )
    result = audited.audit(
        where, stops=ON_TRIO if where == "trio" else STOPS, depth=1, sample=8 if FULL else 1
    )
    assert result.verdict in ("CLEAN", "FINDINGS"), str(result)
    assert not result.errors, str(result)
    warnings = {finding.kind for finding in result.findings if not finding.ignored}
    assert warnings <= {"check"}, str(result)  # others can only cut a clean-up
