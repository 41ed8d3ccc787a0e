"""What is audited, and what has to come of it.

A release is installed in an environment of its own, in the versions that the file of its name pins. A case is one
audit there. Its `known` bugs must all be found, each with this kind and at this place of the package; a case without
any must be silent. Nothing here helps the audit: no check of the scenario's own, no ignore, no hint where to look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Known:
    """A bug that is known, as the audit has to show it. `what` is a pattern of fnmatch."""

    kind: str
    what: str
    at: str = ""  # a file of the package, among the places of the finding
    says: str = ""  # a part of the finding's detail


@dataclass(frozen=True)
class Case:
    module: str
    scenario: str
    stops: str
    known: tuple[Known, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)

    @property
    def is_silent(self) -> bool:
        return not self.known


@dataclass(frozen=True)
class Release:
    name: str  # of its environment and of its file of versions
    package: str  # its name, and its version if that is the point
    cases: tuple[Case, ...]
    minor: int = 11  # of the oldest Python 3 that it runs on
    is_optional: bool = False  # heavy: where it cannot be installed it is skipped, and said to be
    settings: dict[str, str] = field(default_factory=dict)  # environment variables


ROOT = "cancel,timeout,scope"  # the stops of the root alone

RELEASES = (
    Release(
        "agent-client-protocol",
        "agent-client-protocol==0.8.1",
        (
            Case(
                "acp_run_agent",
                "serve_one_client",
                "cancel,shutdown,timeout",
                (
                    Known("leaked", "MessageSender._loop", "acp/task/sender.py"),
                    Known("leaked", "DefaultMessageDispatcher._run", "acp/task/dispatcher.py"),
                    Known("swallowed", "serve_one_client", "acp/connection.py"),
                ),
            ),
        ),
    ),
    Release(
        "openai-agents-0.19",
        "openai-agents==0.19.0",
        (
            Case(
                "openai_guardrail",
                "answer_one_question",
                "cancel,shutdown,timeout,raise",
                (Known("late", "run_single_turn", "agents/run.py"),),
            ),
        ),
    ),
    Release(
        "openai-agents-0.18",
        "openai-agents==0.18.0",
        (
            Case(
                "openai_realtime",
                "hold_one_conversation",
                "cancel,shutdown,timeout",
                (
                    Known("late", "RealtimeSession._handle_tool_call", "agents/realtime/session.py"),
                    Known("late", "RealtimeSession._run_output_guardrails", "agents/realtime/session.py"),
                ),
            ),
        ),
    ),
    Release(
        "claude-agent-sdk",
        "claude-agent-sdk==0.1.50",
        (
            Case(
                "claude_query",
                "read_answers",
                "cancel,close,drop",
                (
                    Known(
                        "unretrieved",
                        "InternalClient.process_query.aclose",
                        says="cancel scope in a different task",
                    ),
                    Known(
                        "generator", "InternalClient.process_query", "claude_agent_sdk/_internal/client.py"
                    ),
                    Known("bystander", "read_answers"),
                ),
                {"real_io": True},
                {"patience": 6.0, "hang_after": 20.0},  # a child needs a moment to start
            ),
        ),
        settings={"CLAUDE_AGENT_SDK_SKIP_VERSION_CHECK": "1"},
    ),
    Release(
        "newest",
        "mcp==2.3.0",
        (
            Case("silent", "asyncio_task_group", ROOT),
            Case("silent", "nested_asyncio_task_groups", ROOT),
            Case("silent", "anyio_task_group", ROOT),
            Case("silent", "nested_anyio_task_groups", ROOT),
            Case("silent", "mcp_client_and_server", ROOT),
            Case("silent", "mcp_over_memory_streams", ROOT),
            # Not silent when every task is cancelled at once, as when `asyncio.run` ends: see the docs.
            Case("silent", "asyncio_task_group", "shutdown"),
            Case("silent", "nested_asyncio_task_groups", "shutdown"),
            Case(
                "silent",
                "anyio_task_group",
                "shutdown",
                (Known("unawaited", "anyio_task_group.*", "anyio/abc/_tasks.py"),),
            ),
            Case(
                "silent",
                "mcp_over_memory_streams",
                "shutdown",
                (Known("hang", "mcp_over_memory_streams", "anyio/_backends/_asyncio.py"),),
            ),
        ),
    ),
    Release(
        "openhands-sdk",
        "openhands-sdk==1.24.0",
        (
            Case(
                "openhands_interrupt",
                "interrupt_a_polling_tool",
                "cancel",
                (Known("thread", "asyncio_N", "openhands/sdk/agent/parallel_executor.py"),),
                {"real_io": True},
                {"patience": 3.0, "hang_after": 10.0, "linger": 1.0},
            ),
            Case(
                "openhands_interrupt",
                "interrupt_a_tool_that_keeps_its_token",
                "cancel",
                (),
                {"real_io": True},
                {"patience": 3.0, "hang_after": 10.0, "linger": 1.0},
            ),
        ),
        minor=12,
        is_optional=True,
        settings={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1"},
    ),
)
