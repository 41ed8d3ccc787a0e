"""The embedded model's life: loaded when it is opened, ended with its owner, and no processor at work for an answer that nobody wants.

The process is real, and so is the wire; what computes in it is `stand_in_llama`. `make test-embedded` does the same with the real weights.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import quiesce
from quiesce._extras import MissingExtra
from quiesce.models import (
    AssistantMessage,
    EmbeddedModel,
    Model,
    ModelConnectionError,
    ModelEvent,
    ModelNotFoundError,
    ModelRequest,
    ModelSettings,
    ModelTimeoutError,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolSpec,
    UserMessage,
)
from quiesce_chat.embedded import server as serving
from tests.models import stand_in_llama

pytestmark = [pytest.mark.real_time, pytest.mark.worlds("asyncio")]
ON_TRIO_TOO = pytest.mark.worlds("asyncio", "trio")
PATIENCE = 15.0


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    shutil.copy(stand_in_llama.__file__, packages / "xllamacpp.py")
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    made = tmp_path / "tiny.gguf"
    now("good", made)
    return made


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on a slow machine may be slow to say that it is free, or to end."""
    monkeypatch.setattr(serving, "FREED_WITHIN", PATIENCE)


def now(kind: str, weights: Path) -> None:
    """From now on these weights are good, broken, or slow to load."""
    weights.write_text(kind)


def asking(text: str, **settings: Any) -> ModelRequest:
    return ModelRequest([UserMessage(text)], settings=ModelSettings(**settings))


async def answer(model: Model, text: str) -> str:
    events = [event async for event in model.stream(asking(text))]
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def servers() -> set[int]:
    """The processes of ours that serve a model now."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == os.getpid() and b"server_main.py" in words:
                found.add(int(folder.name))
    return found


@asynccontextmanager
async def in_the_middle(model: Model) -> AsyncIterator[AsyncIterator[ModelEvent]]:
    """An answer without an end, of which something was heard."""
    async with aclosing(model.stream(asking("for ever"))) as events:
        for _ in range(5):
            await anext(events)
        yield events


async def give_up_a_deaf_answer(model: Model, weights: Path) -> None:
    """Ask for one, and cancel it when the server is at it."""
    at_it = f"{weights}.deaf"
    async with quiesce.Scope() as scope:
        asked = scope.spawn(answer, model, "deaf")
        with anyio.fail_after(PATIENCE):
            while not os.path.exists(at_it):  # noqa: ASYNC240
                await anyio.sleep(0.01)
        asked.cancel()
        await asked.wait()


@pytest.mark.usefixtures("patience")
@ON_TRIO_TOO
async def test_an_open_model_stays_loaded_between_answers_and_its_end_leaves_nothing(weights: Path) -> None:
    async with EmbeddedModel(weights=weights) as model:
        loaded = servers()
        assert len(loaded) == 1
        assert await answer(model, "hello") == "HELLO"
        assert await answer(model, "again") == "AGAIN"
        assert servers() == loaded
    assert not servers()


async def test_a_model_that_nobody_opened_leaves_nothing_between_answers(weights: Path) -> None:
    model = EmbeddedModel(weights=weights)
    assert not servers()
    assert await answer(model, "hello") == "HELLO"
    assert not servers()


async def test_close_ends_it_and_reports(weights: Path) -> None:
    model = await EmbeddedModel(weights=weights).open()
    report = await model.close()
    assert report is not None
    assert report.clean
    assert not servers()
    assert await model.close() is None


@ON_TRIO_TOO
async def test_it_ends_with_the_scope_that_it_was_opened_in(weights: Path) -> None:
    async with quiesce.Scope() as scope:
        model = await EmbeddedModel(weights=weights).open()
        assert servers()
        scope.cancel()
    assert not servers()
    assert await answer(model, "hello") == "HELLO"  # by a server of its own
    await model.close()


async def test_whoever_leaves_last_ends_it(weights: Path) -> None:
    model = EmbeddedModel(weights=weights)
    async with model:
        loaded = servers()
        async with model:
            assert servers() == loaded
        assert servers() == loaded
    assert not servers()


@pytest.mark.usefixtures("patience")
@ON_TRIO_TOO
async def test_an_answer_that_is_given_up_frees_the_server_for_the_next(weights: Path) -> None:
    async with EmbeddedModel(weights=weights) as model:
        loaded = servers()
        async with in_the_middle(model):
            pass
        assert await answer(model, "next") == "NEXT"
        assert servers() == loaded


@ON_TRIO_TOO
async def test_a_server_that_does_not_notice_that_its_answer_is_given_up_is_killed(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EmbeddedModel(weights=weights) as model:
        loaded = servers()
        await give_up_a_deaf_answer(model, weights)
        assert not servers()
        monkeypatch.setattr(serving, "FREED_WITHIN", PATIENCE)  # the next is not deaf
        assert await answer(model, "next") == "NEXT"
        assert len(servers()) == 1
        assert servers() != loaded
    assert not servers()


async def test_giving_up_one_answer_does_not_cut_another(weights: Path) -> None:
    async with EmbeddedModel(weights=weights) as model, in_the_middle(model) as other:
        await give_up_a_deaf_answer(model, weights)
        assert isinstance(await anext(other), TextDelta)


@pytest.mark.usefixtures("patience")
async def test_what_a_burst_of_answers_needed_is_not_kept(weights: Path) -> None:
    async with EmbeddedModel(weights=weights) as model:
        async with in_the_middle(model):
            assert await answer(model, "meanwhile") == "MEANWHILE"
            assert len(servers()) == 2  # the answer under way, and the one that waits for the next
        assert len(servers()) == 1


async def test_two_models_do_not_clash(weights: Path) -> None:
    async with EmbeddedModel(weights=weights) as one, EmbeddedModel(weights=weights) as two:
        assert len(servers()) == 2
        assert [await answer(one, "one"), await answer(two, "two")] == ["ONE", "TWO"]


@ON_TRIO_TOO
async def test_close_in_the_middle_of_an_answer_ends_it_with_an_error(weights: Path) -> None:
    model = await EmbeddedModel(weights=weights).open()
    with pytest.raises(ModelConnectionError):
        async with in_the_middle(model) as events:
            await model.close()
            async for _ in events:
                pass
    assert not servers()


@pytest.mark.usefixtures("patience")
async def test_a_server_that_dies_says_how_and_the_next_answer_has_another(weights: Path) -> None:
    async with EmbeddedModel(weights=weights) as model:
        with pytest.raises(
            ModelConnectionError,
            match=r"the next answer starts another\. What is known: its process exited with status 7",
        ):
            await answer(model, "die")
        assert await answer(model, "hello") == "HELLO"


@pytest.mark.usefixtures("patience")
async def test_a_server_that_was_killed_while_idle_is_replaced(weights: Path) -> None:
    async with EmbeddedModel(weights=weights) as model:
        (pid,) = servers()
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(PATIENCE):
            while servers():
                await anyio.sleep(0.01)
        assert await answer(model, "hello") == "HELLO"


async def test_the_timeout_of_a_call_bounds_loading_too(weights: Path) -> None:
    now("slow", weights)
    with pytest.raises(ModelTimeoutError):
        async for _ in EmbeddedModel(weights=weights).stream(asking("hello", timeout=0.3)):
            pass
    assert not servers()


@ON_TRIO_TOO
async def test_opening_that_is_cancelled_while_it_loads_leaves_nothing(weights: Path) -> None:
    now("slow", weights)
    model = EmbeddedModel(weights=weights)
    with anyio.move_on_after(0.3) as waited:
        await model.open()
    assert waited.cancelled_caught
    assert not servers()
    now("good", weights)
    assert await answer(model, "hello") == "HELLO"


async def test_a_server_that_cannot_start_says_why(weights: Path) -> None:
    now("broken", weights)
    with pytest.raises(
        ModelConnectionError, match="its server cannot start: RuntimeError: Failed to init server"
    ):
        await EmbeddedModel(weights=weights).open()
    assert not servers()


async def test_a_server_that_is_never_ready_is_given_up(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "STARTED_WITHIN", 0.2)
    now("slow", weights)
    with pytest.raises(ModelConnectionError, match=r"it is not ready after 0\.2 s"):
        await EmbeddedModel(weights=weights).open()
    assert not servers()


async def test_nothing_that_it_prints_reaches_our_screen(
    weights: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with EmbeddedModel(weights=weights) as model:
        await answer(model, "hello")
    assert capfd.readouterr() == ("", "")


async def test_a_proxy_in_the_environment_is_not_asked_for_loopback(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await answer(EmbeddedModel(weights=weights), "hello") == "HELLO"


async def test_nobody_without_the_key_is_answered(weights: Path) -> None:
    import http.client

    async with EmbeddedModel(weights=weights) as model:
        port = model._of_this_loop().idle[0]._port
        stranger = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        stranger.request("POST", "/v1/chat/completions", b'{"messages": []}')
        assert stranger.getresponse().status == 401
        stranger.close()


async def test_it_is_shown_no_tools_and_reads_what_they_did_as_text(weights: Path) -> None:
    request = ModelRequest(
        [
            UserMessage("list the files"),
            ToolCall("1", "shell", '{"command": "ls"}'),
            ToolResult("1", "a.txt"),
            AssistantMessage("There is a.txt."),
            UserMessage("show the request"),
        ],
        instructions="Be brief.",
        tools=[ToolSpec("shell", "runs a command", {"type": "object"})],
        settings=ModelSettings(tool_choice="required", extra={"seed": 1}),
    )
    events = [event async for event in EmbeddedModel(weights=weights).stream(request)]
    body = json.loads("".join(event.text for event in events if isinstance(event, TextDelta)))
    assert "tools" not in body
    assert "tool_choice" not in body
    assert body["seed"] == 1
    assert {message["role"] for message in body["messages"]} == {"system", "user", "assistant"}
    assert "The tool shell was used. Its output:\na.txt" in json.dumps(body["messages"]).replace("\\n", "\n")


async def test_weights_that_were_never_fetched_are_an_error_that_says_how() -> None:
    assert not EmbeddedModel.is_fetched()
    with pytest.raises(
        ModelNotFoundError, match=r"are not on this machine yet: fetch them with `await EmbeddedModel.fetch"
    ):
        await answer(EmbeddedModel(), "hello")


async def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"the file .*nowhere\.gguf does not exist"):
        await EmbeddedModel(weights=tmp_path / "nowhere.gguf").open()


def test_without_its_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiesce_chat.embedded.model.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(MissingExtra, match=r"pip install 'quiesce\[embedded\]'"):
        EmbeddedModel()


@pytest.mark.parametrize("wrong", [{"context": 0}, {"threads": -1}, {"threads": True}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a whole number of at least 1"):
        EmbeddedModel(**wrong)
