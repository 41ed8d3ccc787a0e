"""What users of agent-client-protocol write works here when they change the import. docs/acp/carry-over.md is the list."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import quiesce.acp
from quiesce.acp import (
    AgentSideConnection,
    ClientSideConnection,
    connect_to_agent,
    run_agent,
    spawn_agent_process,
)

HERE = Path(__file__).parent
PROGRAM = HERE.parent.parent / "examples" / "carries_over" / "agent_client_protocol.py"
SDK: dict[str, Any] = json.loads((HERE / "sdk_surface.json").read_text())


@pytest.mark.time_limit(60)
def test_a_program_for_agent_client_protocol_prints_the_same_here() -> None:
    """The expected lines were printed by agent-client-protocol; `make test-interop` checks that they still are."""
    done = subprocess.run(
        [sys.executable, "-W", "error", PROGRAM, "quiesce.acp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == PROGRAM.with_suffix(".txt").read_text()


def test_what_is_missing_of_the_package_itself_is_its_own_plumbing() -> None:
    missing = {name for name in SDK["acp"] if not hasattr(quiesce.acp, name)}
    assert missing == {"stdio_streams", "spawn_stdio_connection", "spawn_stdio_transport"}


def parameters(function: Any) -> list[str]:
    return [
        f"**{name}" if parameter.kind is parameter.VAR_KEYWORD else name
        for name, parameter in inspect.signature(function).parameters.items()
    ]


@pytest.mark.parametrize(
    ("connection", "acts_as"), [(AgentSideConnection, "Client"), (ClientSideConnection, "Agent")]
)
def test_a_connection_has_the_methods_of_who_it_acts_as_with_the_same_parameters(
    connection: type, acts_as: str
) -> None:
    theirs = {name: given for name, given in SDK["interfaces"][acts_as].items() if name != "fork_session"}
    ours = {name: parameters(getattr(connection, name)) for name in theirs}
    assert ours == theirs


@pytest.mark.parametrize(
    ("function", "first"),
    [
        (
            AgentSideConnection,
            ["to_agent", "input_stream", "output_stream", "listening", "use_unstable_protocol"],
        ),
        (ClientSideConnection, ["to_client", "input_stream", "output_stream"]),
        (
            run_agent,
            ["agent", "input_stream", "output_stream", "use_unstable_protocol", "stdio_buffer_limit_bytes"],
        ),
        (connect_to_agent, ["client", "input_stream", "output_stream", "use_unstable_protocol"]),
        (spawn_agent_process, ["to_client", "command", "args", "env", "cwd", "transport_kwargs"]),
    ],
)
def test_constructors_take_what_they_took_in_that_order(function: Any, first: list[str]) -> None:
    assert parameters(function)[: len(first)] == first


def test_legacy_names_in_camel_case_are_not_here() -> None:
    for connection in (AgentSideConnection, ClientSideConnection):
        assert not [name for name in dir(connection) if not name.startswith("_") and name.lower() != name]
