"""Users of agent-client-protocol find the names they know: `sdk_surface.json` lists them, `scripts/list_acp_surface.py` made it.

What is missing is listed here, and why. The lists are exact: a name that has been added must be taken off them.
"""

from __future__ import annotations

import inspect
import json
import pickle
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

import quiesce.acp.schema as schema
from quiesce.acp import helpers
from quiesce.acp.exceptions import RequestError
from quiesce.acp.protocol import interfaces as interfaces_module
from quiesce.acp.protocol.meta import AGENT_METHODS, CLIENT_METHODS, PROTOCOL_VERSION
from quiesce.acp.schema import Message
from quiesce.acp.schema.message import ByShape
from quiesce.wire.base.errors import RpcError

NAMES: set[str] = {*import_module("quiesce.acp.schema").__all__}
SDK: dict[str, Any] = json.loads((Path(__file__).parent / "sdk_surface.json").read_text())

# Of drafts that the stable schema does not have.
DRAFT_CLASSES = re.compile(
    r"\w*Nes\w*|\w*Provider\w*|\w+Mcp(Request|Response|Notification)|Did\w+DocumentNotification|TextDocument\w+|"
    r"Position|Range|WorkspaceFolder|ForkSession\w+|SessionForkCapabilities|AcpMcpServer|McpServerAcp|"
    r"AuthEnvVar|AuthMethodEnvVar|EnvVarAuthMethod|Plan(Capabilities|File|Items|Markdown|Removed|Update\w*)|"
    r"AgentPlanContentUpdate|AgentPlanRemovedUpdate|Usage"
)
DRAFT_FIELDS = {
    "AgentCapabilities": {"nes", "position_encoding", "providers"},
    "ClientCapabilities": {"nes", "plan", "position_encodings"},
    "McpCapabilities": {"acp"},
    "PromptResponse": {"usage"},
    "SessionCapabilities": {"fork"},
}
DRAFT_METHODS = re.compile(r"(providers|nes|document|mcp)/.*|session/fork")
# pydantic wraps the value in a class of its own; here the name is the type of the value.
WRAPPERS = {
    "AgentResponse",
    "AvailableCommandInput",
    "ClientResponse",
    "ElicitationContentValue",
    "ElicitationFormMode",
    "ElicitationUrlMode",
}


def parameters(function: Any) -> list[str]:
    listed: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in listed:
            listed.append("*")
        listed.append(f"**{name}" if parameter.kind is parameter.VAR_KEYWORD else name)
    return listed


def test_every_class_is_here_except_those_of_drafts() -> None:
    missing = {name for name in SDK["classes"] if not hasattr(schema, name)}
    assert missing == {name for name in SDK["classes"] if DRAFT_CLASSES.fullmatch(name)}
    assert len(missing) == 89
    assert all(hasattr(schema, name) for name in SDK["aliases"])
    assert set(SDK["classes"]) - missing | set(SDK["aliases"]) <= NAMES


def test_every_field_can_be_given_and_read_by_its_name() -> None:
    lacking = {}
    for name in (SDK["classes"].keys() & NAMES) - WRAPPERS:
        kind = getattr(schema, name)
        assert issubclass(kind, Message), name
        given = set(inspect.signature(kind).parameters)
        assert given == set(kind.__struct_fields__)
        if lacks := set(SDK["classes"][name]["fields"]) - given:
            lacking[name] = lacks
    assert lacking == DRAFT_FIELDS


def test_nothing_is_required_that_was_not() -> None:
    for name in (SDK["classes"].keys() & NAMES) - WRAPPERS:
        required = {info.name for info in msgspec.structs.fields(getattr(schema, name)) if info.required}
        assert required <= set(SDK["classes"][name]["required"]), name


def test_what_pydantic_wraps_is_the_type_itself() -> None:
    for name in WRAPPERS:
        assert SDK["classes"][name]["fields"] == ["root"]
        assert not hasattr(getattr(schema, name), "root")
    assert schema.AvailableCommandInput is schema.UnstructuredCommandInput


def test_the_discriminator_may_be_given_or_not_and_reads_back() -> None:
    checked = 0
    for name in NAMES:
        kind = getattr(schema, name)
        if isinstance(kind, ByShape) or not (isinstance(kind, type) and issubclass(kind, Message)):
            continue
        tag, wire_name = kind.__struct_config__.tag, kind.__struct_config__.tag_field
        if tag in (None, "(unknown)"):
            continue
        (attribute,) = (
            one.name for one in msgspec.structs.fields(kind) if one.encode_name == f"({wire_name})"
        )
        fields: dict[str, Any] = {one.name: None for one in msgspec.structs.fields(kind) if one.required}
        without, given = kind(**fields), kind(**fields | {attribute: "".join([*str(tag)])})
        assert getattr(without, attribute) == getattr(given, attribute) == tag
        assert without == given
        assert msgspec.json.encode(without) == msgspec.json.encode(given)
        assert json.loads(msgspec.json.encode(given))[wire_name or ""] == tag
        with pytest.raises(
            ValueError, match=f"the {attribute} of {name} is '{tag}', and cannot be 'something else'"
        ):
            kind(**fields | {attribute: "something else"})
        checked += 1
    assert checked == 43


def test_every_helper_takes_the_same_parameters() -> None:
    assert sorted(helpers.__all__) == sorted(SDK["helpers"])
    assert {name: parameters(getattr(helpers, name)) for name in helpers.__all__} == SDK["helpers"]


def test_agents_and_clients_have_the_same_handlers_and_what_is_new_in_the_schema() -> None:
    ours = {
        side: {
            name: parameters(one)
            for name, one in inspect.getmembers(getattr(interfaces_module, side), inspect.isfunction)
            if not name.startswith("_")
        }
        for side in ("Agent", "Client")
    }
    theirs = SDK["interfaces"]
    assert theirs["Agent"].pop("fork_session")  # of a draft
    new = {"delete_session": ["self", "session_id", "**kwargs"], "logout": ["self", "**kwargs"]}
    assert ours == {"Agent": {**theirs["Agent"], **new}, "Client": theirs["Client"]}


def test_methods_have_the_same_keys_except_those_of_drafts() -> None:
    for ours, theirs in ((AGENT_METHODS, SDK["agent_methods"]), (CLIENT_METHODS, SDK["client_methods"])):
        assert ours == {key: name for key, name in theirs.items() if not DRAFT_METHODS.fullmatch(name)}
    assert PROTOCOL_VERSION == 1


def test_errors_are_made_by_the_same_names() -> None:
    ours = {
        name: parameters(one)
        for name, one in inspect.getmembers(
            RequestError, lambda one: inspect.isfunction(one) or inspect.ismethod(one)
        )
        if not name.startswith("_") and hasattr(RequestError, name) and name not in vars(Exception)
    }
    ours = {name: listed for name, listed in ours.items() if name in vars(RequestError)}
    assert ours == {**SDK["errors"], "request_cancelled": ["data"]}


def test_an_error_is_one_of_the_wire_and_says_what_the_protocol_says() -> None:
    made = {
        -32700: RequestError.parse_error(),
        -32600: RequestError.invalid_request(),
        -32601: RequestError.method_not_found("x/y"),
        -32602: RequestError.invalid_params({"why": "so"}),
        -32603: RequestError.internal_error(),
        -32800: RequestError.request_cancelled(),
        -32000: RequestError.auth_required(),
        -32002: RequestError.resource_not_found("file:///x"),
    }
    for code, error in made.items():
        assert isinstance(error, RequestError)
        assert isinstance(error, RpcError)
        assert error.code == code
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.to_error_obj()) == (RequestError, error.to_error_obj())
    assert made[-32601].to_error_obj() == {
        "code": -32601,
        "message": "Method not found",
        "data": {"method": "x/y"},
    }
    assert made[-32602].data == {"why": "so"}
    assert made[-32002].data == {"uri": "file:///x"}
    assert RequestError.resource_not_found().data is None
    assert str(made[-32800]) == "Request cancelled"
