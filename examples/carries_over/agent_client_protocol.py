"""One program for two libraries: agent-client-protocol and quiesce.acp, by changing the import.

    python examples/carries_over/agent_client_protocol.py quiesce.acp
    python examples/carries_over/agent_client_protocol.py acp            # where agent-client-protocol is installed

The agent and the client below are written as users of that SDK write them. Both libraries print the same lines.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
from typing import Any

LIBRARY = sys.argv[1] if len(sys.argv) > 1 else "quiesce.acp"
sdk: Any = importlib.import_module(LIBRARY)
schema: Any = importlib.import_module(f"{LIBRARY}.schema")
PROTOCOL_VERSION, RequestError, text_block = sdk.PROTOCOL_VERSION, sdk.RequestError, sdk.text_block


class EchoAgent(sdk.Agent):  # type: ignore[misc]
    _conn: Any

    def __init__(self) -> None:
        self._stop = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        self._conn = conn

    async def initialize(
        self, protocol_version: int, client_capabilities: Any = None, client_info: Any = None, **kwargs: Any
    ) -> Any:
        print("agent: initialize", protocol_version, client_info.name, client_capabilities.terminal)
        return sdk.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True),
                session_capabilities=schema.SessionCapabilities(list=schema.SessionListCapabilities()),
            ),
            agent_info=schema.Implementation(name="echo", title="Echo", version="1.0"),
        )

    async def authenticate(self, method_id: str, **kwargs: Any) -> Any:
        print("agent: authenticate", method_id)
        return sdk.AuthenticateResponse()

    async def new_session(self, cwd: str, mcp_servers: list[Any] | None = None, **kwargs: Any) -> Any:
        if cwd == "/forbidden":
            raise RequestError.auth_required({"why": "forbidden"})
        print("agent: new session in", cwd, [server.name for server in mcp_servers or []])
        return sdk.NewSessionResponse(
            session_id="session-1",
            modes=schema.SessionModeState(
                current_mode_id="ask", available_modes=[schema.SessionMode(id="ask", name="Ask")]
            ),
        )

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: list[Any] | None = None, **kwargs: Any
    ) -> Any:
        await self._conn.session_update(session_id, sdk.update_user_message_text("what I said"))
        return sdk.LoadSessionResponse()

    async def list_sessions(self, cursor: str | None = None, cwd: str | None = None, **kwargs: Any) -> Any:
        return schema.ListSessionsResponse(
            sessions=[schema.SessionInfo(session_id="session-1", cwd="/project")]
        )

    async def set_session_mode(self, mode_id: str, session_id: str, **kwargs: Any) -> Any:
        print("agent: mode", mode_id)
        return sdk.SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **kwargs: Any
    ) -> Any:
        print("agent: option", config_id, value)
        return sdk.SetSessionConfigOptionResponse(config_options=[])

    async def prompt(self, prompt: list[Any], session_id: str, **kwargs: Any) -> Any:
        said, conn = prompt[0].text, self._conn
        print("agent: asked", said, kwargs.get("trace"))
        if said == "wait":
            await conn.session_update(session_id, sdk.update_agent_thought_text("thinking"))
            await self._stop.wait()
            return sdk.PromptResponse(stop_reason="cancelled")
        if said == "work":
            await self._work(session_id)
        await conn.session_update(session_id, sdk.update_agent_message(text_block(f"you said {said}")))
        return sdk.PromptResponse(stop_reason="end_turn")

    async def _work(self, session_id: str) -> None:
        conn = self._conn
        call = sdk.start_edit_tool_call("call-1", "Edit the notes", "/project/notes.md", "new text")
        await conn.session_update(session_id, call)
        permission = await conn.request_permission(
            session_id=session_id,
            tool_call=schema.ToolCallUpdate(tool_call_id="call-1", title="Edit the notes"),
            options=[schema.PermissionOption(option_id="yes", name="Yes", kind="allow_once")],
        )
        print("agent: permission", permission.outcome.outcome, permission.outcome.option_id)
        text = await conn.read_text_file(session_id=session_id, path="/project/notes.md", line=1, limit=2)
        await conn.write_text_file(
            session_id=session_id, path="/project/notes.md", content=text.content.upper()
        )
        terminal = await conn.create_terminal(session_id=session_id, command="make", args=["test"])
        print("agent: exit", (await conn.wait_for_terminal_exit(session_id, terminal.terminal_id)).exit_code)
        print("agent: output", (await conn.terminal_output(session_id, terminal.terminal_id)).output)
        await conn.release_terminal(session_id, terminal.terminal_id)
        done = sdk.update_tool_call(
            "call-1", status="completed", content=[sdk.tool_content(text_block("edited"))]
        )
        await conn.session_update(session_id, done)
        await conn.session_update(session_id, sdk.update_plan([sdk.plan_entry("Test", status="completed")]))

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        self._stop.set()

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"method": method, **params}

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        print("agent: told", method, params)


class PrintingClient(sdk.Client):  # type: ignore[misc]
    def on_connect(self, conn: Any) -> None:
        print("client: connected")

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        kind = update.session_update
        if kind.endswith("_chunk"):
            print("client:", kind, update.content.text)
        elif kind == "plan":
            print("client: plan", [(entry.content, entry.status) for entry in update.entries])
        else:
            print("client:", kind, update.tool_call_id, update.title, update.status)

    async def request_permission(
        self, options: list[Any], session_id: str, tool_call: Any, **kwargs: Any
    ) -> Any:
        print("client: may it", tool_call.title, [option.kind for option in options])
        return sdk.RequestPermissionResponse(
            outcome=schema.AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        )

    async def read_text_file(
        self, path: str, session_id: str, limit: int | None = None, line: int | None = None, **kwargs: Any
    ) -> Any:
        return sdk.ReadTextFileResponse(content=f"lines {line} to {limit} of {path}")

    async def write_text_file(self, content: str, path: str, session_id: str, **kwargs: Any) -> Any:
        print("client: write", content)
        return sdk.WriteTextFileResponse()

    async def create_terminal(self, command: str, session_id: str, **kwargs: Any) -> Any:
        return sdk.CreateTerminalResponse(terminal_id=f"terminal of {command} {kwargs['args']}")

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
        return sdk.WaitForTerminalExitResponse(exit_code=0)

    async def terminal_output(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
        return sdk.TerminalOutputResponse(output=terminal_id, truncated=False)

    async def release_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
        print("client: release", terminal_id)
        return sdk.ReleaseTerminalResponse()


async def talk(conn: Any) -> None:
    """One client's conversation, from `initialize` to a turn that it cancels."""
    answer = await conn.initialize(
        protocol_version=PROTOCOL_VERSION,
        client_capabilities=schema.ClientCapabilities(
            fs=schema.FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=True
        ),
        client_info=schema.Implementation(name="printer", version="1.0"),
    )
    print("initialized:", answer.agent_info.title, answer.agent_capabilities.prompt_capabilities.image)
    await conn.authenticate(method_id="key")
    server = schema.McpServerStdio(name="files", command="files-server", args=[], env=[])
    session = await conn.new_session(cwd="/project", mcp_servers=[server])
    print("session:", session.session_id, session.modes.current_mode_id)
    print("sessions:", [found.cwd for found in (await conn.list_sessions()).sessions])
    await conn.set_session_mode(mode_id="ask", session_id=session.session_id)
    await conn.set_config_option(config_id="model", session_id=session.session_id, value="large")
    answer = await conn.prompt(
        session_id=session.session_id, prompt=[text_block("hello")], trace="abc"
    )  # what else is passed goes as _meta
    print("turn:", answer.stop_reason)
    answer = await conn.prompt(session_id=session.session_id, prompt=[text_block("work")])
    print("turn:", answer.stop_reason)
    await conn.load_session(cwd="/project", session_id=session.session_id, mcp_servers=[])
    await asyncio.sleep(0.1)  # one library may return before the last update is handled
    turn = asyncio.create_task(conn.prompt(session_id=session.session_id, prompt=[text_block("wait")]))
    await asyncio.sleep(0.1)
    await conn.cancel(session_id=session.session_id)
    print("turn:", (await turn).stop_reason)
    print("extension:", await conn.ext_method("greet", {"name": "Ada"}))
    await conn.ext_notification("tick", {"n": 1})
    try:
        await conn.new_session(cwd="/forbidden")
    except RequestError as error:
        print("error:", error.code, error, error.data)


async def over_streams() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    far_reader, far_writer = await asyncio.open_connection(sock=theirs)
    agent = asyncio.create_task(sdk.run_agent(EchoAgent(), writer, reader))
    conn = sdk.connect_to_agent(PrintingClient(), far_writer, far_reader)
    await talk(conn)
    await conn.close()
    far_writer.close()  # one library leaves that to its user
    await agent
    writer.close()


async def in_a_child_process() -> None:
    command = (sys.executable, __file__, LIBRARY, "serve")
    async with sdk.spawn_agent_process(PrintingClient(), *command) as (conn, process):
        answer = await conn.initialize(
            protocol_version=PROTOCOL_VERSION,
            client_capabilities=schema.ClientCapabilities(),
            client_info=schema.Implementation(name="printer", version="1.0"),
        )
        print("child:", answer.agent_info.name, process.returncode)
    print("child:", process.returncode is not None)


class QuietAgent(sdk.Agent):  # type: ignore[misc]
    async def initialize(self, protocol_version: int, **kwargs: Any) -> Any:
        return sdk.InitializeResponse(
            protocol_version=protocol_version, agent_info=schema.Implementation(name="quiet", version="1.0")
        )


async def main() -> None:
    if "serve" in sys.argv:
        await sdk.run_agent(QuietAgent())
    else:
        await over_streams()
        await in_a_child_process()


asyncio.run(main())
