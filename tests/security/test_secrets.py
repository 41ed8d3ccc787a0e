"""Threat: a password, a key or a token ends up on a screen, in a log or on a command line that others can read."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

import quiesce
from quiesce import Process, Scope
from quiesce._safe.printed import printed, printed_line
from quiesce._safe.secrets import command_without_secrets, without_secrets
from quiesce.agents import MCPServerStreamableHttp
from quiesce.audit.findings.text import Paint
from quiesce.claude import ClaudeAgentOptions
from quiesce.claude.process.private_arguments import PrivateArguments
from quiesce.models import OpenAIModel
from quiesce.models.words.errors import ModelError
from quiesce.wire import connect_websocket

KEY = "sk-ant-api03-abcdefghijklmnop"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ann:pw@host/v1", "https://…@host/v1"),
        ("https://ann:p@ss@host:80/v1?", "https://…@host:80/v1?"),
        ("postgresql://quiesce:hidden@localhost/db", "postgresql://…@localhost/db"),
        ("GET https://host/v1?key=1&b=2#token=3: 404", "GET https://host/v1?key=…&b=…#token=…: 404"),
        ("('https://u:p@host',)", "('https://…@host',)"),
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: sk-ant-…."),
        ("Authorization: Bearer abcdefghijk", "Authorization: Bearer …"),
        ("{'Authorization': 'Bearer abcdefghijk'}", "{'Authorization': '…'}"),
        ("OPENAI_API_KEY=abc x=1", "OPENAI_API_KEY=… x=1"),
        ('{"password": "pw", "user": "ann"}', '{"password": "…", "user": "ann"}'),
        ("curl --token abc --silent", "curl --token … --silent"),
        ("ghp_abcdefghijklmnopqrstuvwxyz", "ghp_…"),
        ("postgres://ann:pa/ss@db/x", "postgres://…@db/x"),
        ("https://ann:pa#ss@host", "https://…@host"),
        ("https://ann:p?ss@host", "https://…@host"),
        ("https://ann:p'w@host/x", "https://…@host/x"),
        ("['tool', '--api-key', 'abcdef']", "['tool', '--api-key', …]"),
        (r"{\"api_key\": \"abcdef\", \"b\": 1}", r'{\"api_key\": \"…", \"b\": 1}'),
        ("Cookie: a=1; b=hidden\nHost: x", "Cookie: …\nHost: x"),
        ("Authorization: Digest username=x, response=y", "Authorization: Digest …"),
        ("password=1234567890", "password=…"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIx.abcdef", "eyJ…"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----…",
        ),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=200, used 17 tokens",
        "the token was cancelled",
        "invalid token: expected a number",
        "https://host/v1/models",
        "KeyError: 'name'",
        "a key=value pair",
        "task-1 sk-1",
        "token: None",
        "http://localhost:8000/v1: refused",
        "http://localhost:4873/@scope/package",
        "token=12",
    ],
)
def test_what_does_not_is_left_alone(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "token",
        "://",
        "-----BEGIN PRIVATE KEY-----",
        "api-key ",
        "eyJ",
        "=",
        "token= ",
        "_",
        "'",
        "token='",
        "@",
        "?",
        "https://x?a=",
        "bearer ",
        "sk-",
    ],
)
def test_looking_for_secrets_takes_time_by_length_alone(piece: str) -> None:
    def seconds(length: int) -> float:
        text = "https://" + piece * (length // len(piece))
        began = time.thread_time()
        without_secrets(text)
        return time.thread_time() - began

    seconds(1000)
    assert seconds(200_000) < 2


def test_a_command_line_hides_what_its_options_are_given() -> None:
    words = [
        "claude",
        "--mcp-config",
        '{"mcpServers": {"a": {"env": {"PAT": "x"}}}}',
        "--token",
        "t",
        "-p",
        "a b",
    ]
    assert command_without_secrets(words) == "claude --mcp-config {…} --token … -p 'a b'"
    header = ["curl", "-H", "X-Api-Key: a b c", "--password=my pass word", "--max-tokens=5"]
    assert command_without_secrets(header) == "curl -H X-Api-Key:… --password=… --max-tokens=5"


def test_colours_do_not_hide_a_secret_from_the_one_who_looks_for_it() -> None:
    paint = Paint(True)
    shown = [paint.line(paint.bold(text)) for text in ("https://ann:pw@host/v1", KEY, "api_key=hidden")]
    assert shown == [f"\x1b[1m{text}\x1b[0m" for text in ("https://…@host/v1", "sk-ant-…", "api_key=…")]


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_the_tree_and_leftovers_do_not_show_secrets_of_command_lines() -> None:
    program = "import time; time.sleep(60)"
    async with Scope("outer"):
        command = [sys.executable, "-c", program, "--api-key", "hidden-value", "https://u:hidden@h/?k=hidden"]
        async with Process(command, name="worker") as process:
            with anyio.fail_after(10):
                while "api-key" not in str(quiesce.tree()):
                    await anyio.sleep(0.01)
            shown = str(quiesce.tree())
            assert "hidden" not in shown
            assert f"pid {process.pid}: " in shown


async def test_errors_about_addresses_do_not_show_credentials() -> None:
    assert "pw" not in str(ModelError("cannot connect to https://ann:pw@host/v1"))
    server = MCPServerStreamableHttp({"url": "http://ann:pw@127.0.0.1:1/mcp?key=pw"})
    assert server.name == "http://…@127.0.0.1:1/mcp?key=…"
    with pytest.raises(ValueError) as refused:
        connect_websocket("http://ann:pw@host")
    assert "pw" not in str(refused.value)


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_connection_that_fails_does_not_show_credentials() -> None:
    from quiesce.wire import Peer

    with pytest.raises(ConnectionError) as failed:
        async with Peer(connect_websocket("ws://ann:pw@127.0.0.1:9/?key=pw")):
            pass
    assert "pw" not in str(failed.value)


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_model_that_cannot_be_reached_does_not_show_credentials() -> None:
    model = OpenAIModel("m", base_url="http://ann:pw@127.0.0.1:9/v1?key=pw", api_key=KEY)
    agent: Any = quiesce.agents.Agent(name="a", model=model)
    with pytest.raises(ModelError) as failed:
        await quiesce.agents.Runner.run(agent, "hello")
    assert "pw" not in str(failed.value)
    assert KEY not in str(failed.value)


def test_log_records_and_reports_hide_secrets(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("quiesce").warning("lost %s", f"https://u:pw@h {KEY}")
    assert caplog.records[-1].getMessage() == "lost https://…@h sk-ant-…"
    assert printed_line(f"a\n{KEY}") == "a⏎sk-ant-…"
    assert printed(f"a\n{KEY}") == "a\nsk-ant-…"


# The command line of the Claude CLI


SERVERS = {"tools": {"type": "http", "url": "https://h", "headers": {"Authorization": "Bearer hidden"}}}


def test_the_configuration_of_mcp_servers_is_in_a_file_for_the_user_alone() -> None:
    words = ["claude", "--mcp-config", json.dumps({"mcpServers": SERVERS}), "--verbose"]
    private = PrivateArguments(words, None)
    path = Path(private.words[2])
    assert private.words[:2] + private.words[3:] == ["claude", "--mcp-config", "--verbose"]
    assert json.loads(path.read_text()) == {"mcpServers": SERVERS}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.geteuid()
    private.remove()
    private.remove()
    assert not path.exists()


def test_a_configuration_that_is_dropped_is_removed() -> None:
    path = Path(PrivateArguments(["c", "--mcp-config", json.dumps({"mcpServers": SERVERS})], None).words[2])
    assert not path.exists()


@pytest.mark.parametrize(
    "configuration",
    [
        " " + json.dumps({"mcpServers": SERVERS}),
        '{"mcpServers": "hidden"}',
        '{"hidden": {}',
        '{"mcpServers": [1]}',
        "{" * 9999,
    ],
)
def test_a_configuration_that_cannot_be_read_is_private_and_the_cli_says_what_is_wrong(
    configuration: str,
) -> None:
    private = PrivateArguments(["c", "--mcp-config", configuration], None)
    assert Path(private.words[2]).read_text() == configuration
    private.remove()


def test_every_configuration_is_private_and_nothing_else_is() -> None:
    one = json.dumps({"mcpServers": SERVERS})
    words = ["c", "--mcp-config", one, "mine.json", one, "--settings", one, "--mcp-config", one]
    private = PrivateArguments(words, None)
    assert [word != private.words[place] for place, word in enumerate(words)] == [
        place in (2, 4, 8) for place in range(9)
    ]
    paths = [Path(private.words[place]) for place in (2, 4, 8)]
    private.remove()
    assert not any(path.exists() for path in paths)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_of_the_program_does_not_remove_the_file() -> None:
    code = (
        "import json, os, sys\n"
        "from quiesce.claude.process.private_arguments import PrivateArguments\n"
        "private = PrivateArguments(['c', '--mcp-config', sys.argv[1]], None)\n"
        "if not os.fork(): sys.exit()\n"
        "os.wait()\n"
        "print(os.path.exists(private.words[2]))\n"
    )
    configuration = json.dumps({"mcpServers": SERVERS})
    done = subprocess.run(
        [sys.executable, "-c", code, configuration], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    "given",
    [[], ["--mcp-config", "mine.json"], ["--mcp-config", json.dumps({"mcpServers": {"a": {"type": "sdk"}}})]],
)
def test_what_holds_no_secret_stays_where_it_is(given: list[str]) -> None:
    assert PrivateArguments(["claude", *given], None).words == ["claude", *given]


FAKE_CLI = """#!{python}
import json, sys
place = sys.argv.index("--mcp-config") + 1
open({seen!r}, "w").write(json.dumps([sys.argv[place], open(sys.argv[place]).read()]))
"""


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_the_cli_is_started_without_secrets_on_its_command_line(tmp_path: Path) -> None:
    from quiesce.claude import query

    cli, seen = tmp_path / "claude", tmp_path / "seen"
    cli.write_text(FAKE_CLI.format(python=sys.executable, seen=str(seen)))
    cli.chmod(0o755)
    options = ClaudeAgentOptions(cli_path=str(cli), mcp_servers=SERVERS)  # type: ignore[arg-type]
    with pytest.raises(Exception):  # noqa: B017  # it is no CLI, and exits
        async with query(prompt="hello", options=options) as messages:
            async for _ in messages:
                pass
    path, held = json.loads(seen.read_text())
    assert "hidden" in held
    assert not os.access(path, os.F_OK)
