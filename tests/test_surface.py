"""The public surface is what is listed here. Changing it is a decision."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_origin

import anyio
import pytest

import quiesce

PUBLIC = [
    "Branch",
    "CancelToken",
    "ChildCancelled",
    "Containment",
    "DuplicateId",
    "Grace",
    "Handle",
    "Held",
    "Inflight",
    "Leftover",
    "LineTooLong",
    "NotHeld",
    "Outcome",
    "PipeClosed",
    "Process",
    "Reason",
    "Remote",
    "RemoteError",
    "Scope",
    "ScopeClosed",
    "StopReport",
    "Stopped",
    "Stream",
    "TokenCancelled",
    "contain",
    "current_scope",
    "current_token",
    "guarded",
    "own",
    "remote",
    "run",
    "shielded",
    "stream",
    "to_thread",
    "tree",
]


HANDLE = ["cancel", "done", "error", "made_at", "name", "reason", "result", "state", "token", "wait"]

AUDIT = [
    "AuditResult",
    "BadScenario",
    "BadToken",
    "Cell",
    "Example",
    "Finding",
    "Limits",
    "Point",
    "Progress",
    "STOPS",
    "Stop",
    "Strip",
    "UnknownStop",
    "audit",
    "scenario",
]


WIRE = """
    AnyioStream AsyncioStreams Channel ChannelTransport ChildProcess ConnectionEnded FrameTooLong Limits
    MemoryTransport MessageTransport Notification Peer PeerStatistics ProcessExited Request RequestCancelled
    RpcError Server SocketTransport Transport connect_tcp connect_unix connect_websocket memory_pair params_as
    serve_tcp serve_unix serve_websocket stdio
""".split()  # noqa: SIM905

MODELS = """
    AnthropicModel AssistantMessage Content EmbeddedModel FetchProgress Image Item ItemDone Model
    ModelAuthenticationError ModelBehaviorError ModelConnectionError ModelError ModelEvent ModelNotFoundError
    ModelOverloadedError ModelRateLimitError ModelRefusalError ModelRequest ModelRequestError ModelSettings
    ModelTimeoutError Note OpenAIChatCompletionsModel OpenAIModel OpenAIResponsesModel OutputSpec Reasoning ReasoningDelta ResponseDone Text TextDelta Tokens
    ToolCall ToolCallDelta ToolOutcome ToolResult ToolSpec UnknownItem Usage UserMessage WeightsError
""".split()  # noqa: SIM905

ACP_TOOLS = """
    ClientRefused OutsideOfSession Session ask_client current_session edit_file read_file run_command shown_as
    write_file
""".split()  # noqa: SIM905

# Names for a union of types: they have no docstring of their own.
TYPE_ALIASES = {
    "StreamEvent",
    "DecodedStreamEvent",
    "Content",
    "Item",
    "ModelEvent",
    "ToolOutcome",
    "Turn",
} | {
    "RunItem",
    "TResponseInputItem",
    "ToolsToFinalOutputFunction",
}


def modules_after(statement: str) -> set[str]:
    """What a fresh interpreter has loaded after `statement`."""
    code = f"import sys, json; {statement}; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout))


def test_all_is_exactly_the_public_names_in_order() -> None:
    assert importlib.import_module("quiesce").__all__ == PUBLIC


async def test_a_handle_shows_exactly_what_is_for_users() -> None:
    async with quiesce.Scope() as scope:
        handle = scope.spawn(anyio.sleep, 0)
    assert [name for name in dir(handle) if not name.startswith("_")] == HANDLE
    # Nothing is only hidden from `dir`: the classes have no other names.
    found = {name for kind in type(handle).__mro__ for name in vars(kind) if not name.startswith("_")}
    assert sorted(found) == HANDLE


def test_the_help_of_a_handle_explains_exactly_what_is_for_users() -> None:
    names = [attribute.name for attribute in inspect.classify_class_attrs(quiesce.Handle)]
    shown = [name for name in names if pydoc.visiblename(name) and not name.startswith("__")]
    assert sorted(shown) == HANDLE
    told = pydoc.plain(pydoc.render_doc(quiesce.Handle))
    for name in HANDLE:
        first, *_ = (
            inspect.getdoc(inspect.getattr_static(quiesce.Handle, name)) or "not describe_error"
        ).splitlines()
        assert first in told


async def test_a_handle_is_generic_and_one_class() -> None:
    async with quiesce.Scope() as scope:
        handle: quiesce.Handle[int] = scope.spawn(_answer)
    assert isinstance(handle, quiesce.Handle)
    assert get_origin(quiesce.Handle[int]) is quiesce.Handle
    assert get_args(quiesce.Handle[int]) == (int,)


async def _answer() -> int:
    return 42


def test_the_audit_has_exactly_its_public_names_and_each_is_there() -> None:
    audit = importlib.import_module("quiesce.audit")
    assert list(audit.__all__) == AUDIT
    for name in AUDIT:
        assert getattr(audit, name) is not None


def test_the_audit_imports_nothing_of_the_rest_nor_any_backend() -> None:
    code = "import quiesce.audit; quiesce.audit.audit"
    loaded = modules_after(code)
    assert "quiesce.audit.sweep.sweep" in loaded
    assert not {
        name
        for name in loaded
        if name.startswith("quiesce.")
        and not name.startswith(("quiesce.audit", "quiesce._lazy", "quiesce._safe"))
    }
    assert not loaded & {"trio", "uvloop", "anyio", "rich", "pytest"}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "quiesce.asgi",
            [
                "ClientGone",
                "StopOnDisconnect",
                "lifespan",
                "server_scope",
                "sse_events",
                "sse_record",
                "unless_disconnected",
            ],
        ),
        ("quiesce.fixtures", ["owned_fixture"]),
        ("quiesce.telemetry", ["disable", "enable", "on_stop"]),
        ("quiesce.testing", ["Answer", "ScriptExhausted", "ScriptedModel", "Turn", "call", "check_store"]),
        ("quiesce.wire", WIRE),
        ("quiesce.models", MODELS),
        ("quiesce.acp.tools", ACP_TOOLS),
    ],
)
def test_a_module_beside_the_kernel_has_exactly_its_names_and_each_explains_itself(
    module: str, names: list[str]
) -> None:
    found = importlib.import_module(module)
    assert found.__all__ == names
    assert all(inspect.getdoc(getattr(found, name)) for name in names if name not in TYPE_ALIASES)


AGENTS = """
    Agent AgentBase AgentHookContext AgentHooks AgentToolStreamEvent AgentUpdatedStreamEvent
    AgentsException ApprovalDecided ApprovalRequested CallModelData Conversation ConversationBusy
    ConversationClosed DecodedStreamEvent Event EventFeed FunctionTool FunctionToolResult
    GuardrailFunctionOutput GuardrailTripwireTriggered Handoff HandoffInputData Holder
    InputGuardrail InputGuardrailResult InputGuardrailTripwireTriggered InvalidFinalOutput
    InvalidToolArguments ItemAdded ItemHelpers ItemPopped ItemsCleared Lease Log LogSession
    MCPServerError MCPServerStdio MCPServerStreamableHttp MCPToolError MaxTurnsExceeded
    MemorySession MemoryStore MessageOutputItem MessageQueued Model ModelBehaviorError
    ModelInputData ModelResponse ModelSettings OpenAIChatCompletionsModel OpenAIResponsesModel
    OutputGuardrail OutputGuardrailResult OutputGuardrailTripwireTriggered Posted PostgresStore
    RawResponseEvent RawResponsesStreamEvent ReasoningItem Recovered Rejected RemoteAgent
    RemoteToolError RunConfig RunContextWrapper RunEnded RunErrorDetails RunHooks RunItem
    RunItemStreamEvent RunResult RunResultStreaming RunStarted RunState Runner SQLiteSession
    SQLiteStore Session Snapshot Span StatusChanged StopAtTools StopRequested Stopping Store
    StoreClosed StoreConflict StoreError StoreFenced StoreHeld StoreInDoubt StreamEvent
    TResponseInputItem Tool ToolApprovalItem ToolCallItem ToolCallOutputItem ToolContext
    ToolGuardrailFunctionOutput ToolInputGuardrail ToolInputGuardrailData
    ToolInputGuardrailTripwireTriggered ToolOutputGuardrail ToolOutputGuardrailData
    ToolOutputGuardrailTripwireTriggered ToolProcessError ToolStarted ToolTimeoutError
    ToolsToFinalOutputFunction ToolsToFinalOutputResult Trace UnknownEvent UnknownStreamEvent Usage
    UsageAdded UserError custom_span decode_event decode_stream_event encode_event
    encode_stream_event function_tool gen_trace_id handoff input_guardrail output_guardrail recover
    repair set_tracing_disabled tool_input_guardrail tool_output_guardrail trace
""".split()  # noqa: SIM905


def test_the_agents_have_exactly_their_public_names_and_each_explains_itself() -> None:
    agents = importlib.import_module("quiesce.agents")
    assert list(agents.__all__) == AGENTS
    assert all(inspect.getdoc(getattr(agents, name)) for name in AGENTS if name not in TYPE_ALIASES)
    assert set(AGENTS) <= set(dir(agents))


# Where programs for another SDK import from: each of these names is one of the package above the module.
FAMILIAR = {
    "quiesce.acp.core": """
        Agent AgentSideConnection Client ClientSideConnection RequestError connect_to_agent run_agent
    """,
    "quiesce.acp.interfaces": "Agent Client",
    "quiesce.acp.meta": "AGENT_METHODS CLIENT_METHODS PROTOCOL_VERSION",
    "quiesce.acp.stdio": "spawn_agent_process spawn_client_process",
    "quiesce.agents.decorators": """
        function_tool input_guardrail output_guardrail tool tool_input_guardrail tool_output_guardrail
    """,
    "quiesce.agents.exceptions": """
        AgentsException InputGuardrailTripwireTriggered MaxTurnsExceeded ModelBehaviorError
        OutputGuardrailTripwireTriggered RunErrorDetails ToolInputGuardrailTripwireTriggered
        ToolOutputGuardrailTripwireTriggered ToolTimeoutError UserError
    """,
    "quiesce.agents.guardrail": """
        GuardrailFunctionOutput InputGuardrail InputGuardrailResult OutputGuardrail OutputGuardrailResult
        input_guardrail output_guardrail
    """,
    "quiesce.agents.handoffs": "Handoff HandoffInputData handoff",
    "quiesce.agents.items": """
        ItemHelpers MessageOutputItem ModelResponse ReasoningItem RunItem TResponseInputItem ToolApprovalItem
        ToolCallItem ToolCallOutputItem
    """,
    "quiesce.agents.lifecycle": "AgentHooks RunHooks",
    "quiesce.agents.memory": "SQLiteSession Session",
    "quiesce.agents.model_settings": "ModelSettings",
    "quiesce.agents.result": "RunResult RunResultStreaming",
    "quiesce.agents.run_context": "AgentHookContext RunContextWrapper",
    "quiesce.agents.run_state": "RunState",
    "quiesce.agents.stream_events": """
        AgentUpdatedStreamEvent RawResponsesStreamEvent RunItemStreamEvent StreamEvent
    """,
    "quiesce.agents.tool": "FunctionTool FunctionToolResult Tool function_tool",
    "quiesce.agents.tool_context": "ToolContext",
    "quiesce.agents.tool_guardrails": """
        ToolGuardrailFunctionOutput ToolInputGuardrail ToolInputGuardrailData ToolOutputGuardrail
        ToolOutputGuardrailData tool_input_guardrail tool_output_guardrail
    """,
    "quiesce.agents.tracing": "Span Trace custom_span gen_trace_id set_tracing_disabled trace",
    "quiesce.agents.usage": "Usage",
}


@pytest.mark.parametrize("module", FAMILIAR)
def test_a_familiar_module_offers_exactly_names_of_its_package(module: str) -> None:
    found, package = importlib.import_module(module), importlib.import_module(module.rpartition(".")[0])
    assert list(found.__all__) == FAMILIAR[module].split()
    for name in found.__all__:
        above = "function_tool" if name == "tool" else name
        assert getattr(found, name) is getattr(package, above)


def test_some_names_are_second_names() -> None:
    agents, models = importlib.import_module("quiesce.agents"), importlib.import_module("quiesce.models")
    assert agents.ToolCallItem is models.ToolCall
    assert agents.ToolCallOutputItem is models.ToolResult
    assert agents.MessageOutputItem is models.AssistantMessage
    assert agents.ReasoningItem is models.Reasoning
    assert agents.RunItem is models.Item
    assert agents.Tool is agents.FunctionTool
    assert agents.AgentBase is agents.Agent
    assert agents.AgentHookContext is agents.RunContextWrapper
    assert agents.RawResponsesStreamEvent is agents.RawResponseEvent


@pytest.mark.parametrize("package", ["quiesce.agents", "quiesce.acp", "quiesce.claude"])
def test_a_package_that_takes_the_place_of_an_sdk_has_a_version(package: str) -> None:
    assert importlib.import_module(package).__version__ == quiesce.__version__


def test_using_the_agents_imports_no_client_that_nobody_asked_for() -> None:
    loaded = modules_after("import quiesce.agents as a; [getattr(a, name) for name in a.__all__]")
    assert "quiesce.agents.run.runner" in loaded
    assert not loaded & {"openai", "anthropic", "mcp", "pydantic", "trio", "uvloop", "httpx"}


@pytest.mark.parametrize(
    ("missing", "statement", "extra"),
    [
        ("msgspec", "import quiesce.agents", "agents"),
        ("msgspec", "import quiesce.models", "agents"),
        ("openai", "from quiesce.models import OpenAIModel; OpenAIModel('some')", "openai"),
        ("anthropic", "from quiesce.models import AnthropicModel; AnthropicModel('some')", "anthropic"),
        ("quiesce_chat", "from quiesce.models import EmbeddedModel", "embedded"),
        ("quiesce_chat", "import quiesce.models; quiesce.models.WeightsError", "embedded"),
    ],
)
def test_a_missing_extra_is_a_plain_error_that_names_it(missing: str, statement: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; {statement}"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert f"pip install 'quiesce[{extra}]'" in answer.stderr.splitlines()[-1]


def test_without_the_chat_the_models_list_what_is_there() -> None:
    code = """
import sys; sys.modules["quiesce_chat"] = None
import quiesce.models; from quiesce.models import *
print(OpenAIModel.__name__, {"EmbeddedModel", "FetchProgress", "WeightsError"} & {*dir(quiesce.models), *quiesce.models.__all__})
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "OpenAIModel set()\n"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported_and_explains_itself(name: str) -> None:
    value = getattr(quiesce, name)
    documentation = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    assert documentation
    assert documentation.strip()


def test_dir_shows_the_public_names() -> None:
    assert set(PUBLIC) <= set(dir(quiesce))


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(quiesce, "no_such_name")  # noqa: B009


def test_importing_quiesce_imports_neither_its_parts_nor_a_backend() -> None:
    loaded = modules_after("import quiesce")
    assert "quiesce" in loaded
    assert {name for name in loaded if name.startswith("quiesce.")} == {"quiesce._lazy"}
    assert not loaded & {"anyio", "asyncio", "trio", "uvloop", "sniffio"}


def test_using_the_kernel_does_not_need_trio_or_uvloop() -> None:
    loaded = modules_after("import quiesce; [getattr(quiesce, name) for name in quiesce.__all__]")
    assert "quiesce.kernel" in loaded
    assert not loaded & {"trio", "uvloop"}


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(quiesce.__file__).with_name("py.typed").exists()


def test_the_version_is_the_one_that_is_installed() -> None:
    assert quiesce.__version__ == importlib.metadata.version("quiesce")
