"""Both ends of a connection: every method of the protocol, the order of what is told, and what is not understood."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from quiesce.acp import (
    PROTOCOL_VERSION,
    Agent,
    AgentSideConnection,
    Client,
    ClientSideConnection,
    InitializeResponse,
    NewSessionResponse,
    PromptResponse,
    RequestError,
    connect_to_agent,
    run_agent,
    schema,
    text_block,
    to_dict,
    update_agent_message_text,
)
from quiesce.acp.protocol.methods import AGENT, CLIENT
from quiesce.wire import RpcError
from tests.acp.pairs import (
    HELLO,
    AClient,
    AnAgent,
    agent_by_lines,
    client_by_lines,
    connected,
    in_session,
    prompt,
)
from tests.acp.streams import stream_pair
from tests.world import asyncio_only

EVERYTHING = schema.AgentCapabilities(
    load_session=True,
    auth=schema.AgentAuthCapabilities(logout=schema.LogoutCapabilities()),
    session_capabilities=schema.SessionCapabilities(
        list=schema.SessionListCapabilities(),
        delete=schema.SessionDeleteCapabilities(),
        resume=schema.SessionResumeCapabilities(),
        close=schema.SessionCloseCapabilities(),
    ),
)


# Every method, both ways ----------------------------------------------------------------------------------------------


class Complete(AnAgent):
    """An agent with every method of the stable schema; it keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def initialize(self, protocol_version: int, **kwargs: Any) -> InitializeResponse:
        self.calls.append(("initialize", kwargs))
        return InitializeResponse(
            protocol_version=protocol_version,
            agent_capabilities=EVERYTHING,
            auth_methods=[schema.AuthMethodAgent(id="key", name="API key")],
        )

    async def authenticate(self, method_id: str, **kwargs: Any) -> None:
        self.calls.append(("authenticate", {"method_id": method_id}))

    async def logout(self, **kwargs: Any) -> schema.LogoutResponse:
        self.calls.append(("logout", {}))
        return schema.LogoutResponse()

    async def load_session(self, cwd: str, session_id: str, **kwargs: Any) -> None:
        self.calls.append(("load_session", {"cwd": cwd, "session_id": session_id}))

    async def resume_session(self, cwd: str, session_id: str, **kwargs: Any) -> schema.ResumeSessionResponse:
        self.calls.append(("resume_session", {"cwd": cwd, "session_id": session_id}))
        return schema.ResumeSessionResponse()

    async def list_sessions(self, cursor: str | None = None, **kwargs: Any) -> schema.ListSessionsResponse:
        self.calls.append(("list_sessions", {"cursor": cursor}))
        return schema.ListSessionsResponse(sessions=[schema.SessionInfo(session_id="s", cwd="/project")])

    async def close_session(self, session_id: str, **kwargs: Any) -> None:
        self.calls.append(("close_session", {"session_id": session_id}))

    async def delete_session(self, session_id: str, **kwargs: Any) -> None:
        self.calls.append(("delete_session", {"session_id": session_id}))

    async def set_session_mode(self, mode_id: str, session_id: str, **kwargs: Any) -> None:
        self.calls.append(("set_session_mode", {"mode_id": mode_id}))

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **kwargs: Any
    ) -> schema.SetSessionConfigOptionResponse:
        self.calls.append(("set_config_option", {"config_id": config_id, "value": value}))
        return schema.SetSessionConfigOptionResponse(config_options=[])


async def test_every_request_of_a_client_reaches_its_handler_and_is_answered() -> None:
    agent = Complete()
    async with connected(agent) as (_, client):
        answer = await client.initialize(
            protocol_version=PROTOCOL_VERSION, client_info=schema.Implementation(name="test", version="1")
        )
        assert answer.protocol_version == PROTOCOL_VERSION
        assert answer.auth_methods == [schema.AuthMethodAgent(id="key", name="API key")]
        assert client.agent_capabilities == EVERYTHING
        assert isinstance(await client.authenticate("key"), schema.AuthenticateResponse)
        assert (await client.new_session(cwd="/project", mcp_servers=[])).session_id == "session-1"
        assert isinstance(await client.load_session("/project", "s"), schema.LoadSessionResponse)
        assert isinstance(await client.resume_session("s", "/project"), schema.ResumeSessionResponse)
        assert [one.session_id for one in (await client.list_sessions(cursor="2")).sessions] == ["s"]
        assert isinstance(await client.set_session_mode("s", "plan"), schema.SetSessionModeResponse)
        assert (await client.set_config_option("model", "s", "large")).config_options == []
        assert (await client.set_config_option("fast", "s", True)).config_options == []
        assert (await client.prompt("s", HELLO)).stop_reason == "end_turn"
        assert isinstance(await client.close_session("s"), schema.CloseSessionResponse)
        assert isinstance(await client.delete_session("s"), schema.DeleteSessionResponse)
        assert isinstance(await client.logout(), schema.LogoutResponse)
    assert agent.calls[0][1]["client_info"].name == "test"
    assert agent.calls[1:] == [
        ("authenticate", {"method_id": "key"}),
        ("load_session", {"cwd": "/project", "session_id": "s"}),
        ("resume_session", {"cwd": "/project", "session_id": "s"}),
        ("list_sessions", {"cursor": "2"}),
        ("set_session_mode", {"mode_id": "plan"}),
        ("set_config_option", {"config_id": "model", "value": "large"}),
        ("set_config_option", {"config_id": "fast", "value": True}),
        ("close_session", {"session_id": "s"}),
        ("delete_session", {"session_id": "s"}),
        ("logout", {}),
    ]
    assert set(AGENT) == {name for name, _ in agent.calls} | {"new_session", "prompt"}


class Desktop(AClient):
    """A client with every method of the stable schema."""

    async def read_text_file(
        self, path: str, session_id: str, line: int | None = None, limit: int | None = None, **kwargs: Any
    ) -> schema.ReadTextFileResponse:
        return schema.ReadTextFileResponse(content=f"{path} {line} {limit}")

    async def write_text_file(self, content: str, path: str, session_id: str, **kwargs: Any) -> None:
        self.told.append(f"{path}: {content}")

    async def create_terminal(
        self, command: str, session_id: str, args: list[str] | None = None, **kwargs: Any
    ) -> schema.CreateTerminalResponse:
        return schema.CreateTerminalResponse(terminal_id=" ".join([command, *(args or [])]))

    async def terminal_output(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> schema.TerminalOutputResponse:
        return schema.TerminalOutputResponse(output="out", truncated=False)

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> schema.WaitForTerminalExitResponse:
        return schema.WaitForTerminalExitResponse(exit_code=0)

    async def kill_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> None:
        self.told.append(f"kill {terminal_id}")

    async def release_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> None:
        self.told.append(f"release {terminal_id}")

    async def create_elicitation(
        self, message: str, mode: schema.ElicitationMode, **kwargs: Any
    ) -> schema.CreateElicitationResponse:
        self.told.append(f"{message} {type(mode).__name__}")
        return schema.DeclineElicitationResponse()

    async def complete_elicitation(self, elicitation_id: str, **kwargs: Any) -> None:
        self.told.append(f"complete {elicitation_id}")


async def test_every_request_of_an_agent_reaches_its_handler_and_is_answered() -> None:
    client = Desktop()
    async with connected(AnAgent(), client) as (agent, _):
        assert (await agent.read_text_file("s", "/a", 2, 3)).content == "/a 2 3"
        assert isinstance(await agent.write_text_file("s", "/b", "text"), schema.WriteTextFileResponse)
        assert (await agent.create_terminal("s", "ls", ["-l"])).terminal_id == "ls -l"
        assert (await agent.terminal_output("s", "t")).output == "out"
        assert (await agent.wait_for_terminal_exit("s", "t")).exit_code == 0
        assert isinstance(await agent.kill_terminal("s", "t"), schema.KillTerminalResponse)
        assert isinstance(await agent.release_terminal("s", "t"), schema.ReleaseTerminalResponse)
        tool_call = schema.ToolCallUpdate(tool_call_id="c", title="Delete everything")
        permission = await agent.request_permission("s", tool_call, [])
        assert permission.outcome == schema.AllowedOutcome(outcome="selected", option_id="yes")
        form = schema.ElicitationFormSessionMode(session_id="s", requested_schema=schema.ElicitationSchema())
        address = schema.ElicitationUrlSessionMode(
            session_id="s", elicitation_id="e", url="https://example.org"
        )
        for mode in (form, address):
            answer = await agent.create_elicitation("Who?", mode)
            assert isinstance(answer, schema.DeclineElicitationResponse)
        await agent.complete_elicitation("e")
        await agent.session_update("s", update_agent_message_text("done"))
        while len(client.told) < 7:
            await anyio.sleep(0)
    assert sorted(client.told) == sorted(
        [
            "/b: text",
            "kill t",
            "release t",
            "Who? ElicitationFormSessionMode",
            "Who? ElicitationUrlSessionMode",
            "complete e",
            "done",
        ]
    )
    assert all(hasattr(Desktop, name) for name in CLIENT)


# The order of what is told ------------------------------------------------------------------------------------------------


class Uneven(AClient):
    """A client that takes its time for some updates, and less for others."""

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        for _ in range(20 - len(self.told)):
            await anyio.sleep(0)
        await super().session_update(session_id, update)


class Chatty(AnAgent):
    async def tell_20(self, session_id: str) -> None:
        for number in range(20):
            await self.say(session_id, str(number))

    async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
        await self.tell_20(session_id)
        return PromptResponse(stop_reason="end_turn")

    async def load_session(self, session_id: str, **kwargs: Any) -> schema.LoadSessionResponse:
        await self.tell_20(session_id)
        return schema.LoadSessionResponse()

    async def set_session_mode(self, session_id: str, **kwargs: Any) -> schema.SetSessionModeResponse:
        await self.tell_20(session_id)
        return schema.SetSessionModeResponse()


@pytest.mark.parametrize("by", ["prompt", "load_session", "set_session_mode"])
async def test_updates_are_handled_in_order_and_before_the_answer(by: str) -> None:
    client = Uneven()
    async with connected(Chatty(), client) as (_, agent):
        if by == "prompt":
            await agent.prompt("s", HELLO)
        elif by == "load_session":
            await agent.load_session("/project", "s")
        else:
            await agent.set_session_mode("s", "plan")
        assert client.told == [str(number) for number in range(20)]


async def test_an_update_whose_handler_fails_is_logged_and_the_others_are_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(AClient):
        async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
            if update.content.text == "3":
                raise LookupError("no window")
            await super().session_update(session_id, update)

    client = Failing()
    async with connected(Chatty(), client) as (_, agent):
        await agent.prompt("s", HELLO)
    assert len(client.told) == 19
    assert "no window" in caplog.text


async def test_what_is_told_about_a_new_session_follows_its_name() -> None:
    class Eager(AnAgent):
        async def new_session(self, cwd: str, **kwargs: Any) -> NewSessionResponse:
            await self.say("new", "my commands")
            await anyio.sleep(0)
            await self.say("new", "my modes")
            return NewSessionResponse(session_id="new")

    new = {"id": 1, "method": "session/new", "params": {"cwd": "/project", "mcpServers": []}}
    async with agent_by_lines(Eager()) as (lines, _):
        await lines.send(new)
        first, second, third = [await lines.receive() for _ in range(3)]
    assert first["result"]["sessionId"] == "new"
    texts = [note["params"]["update"]["content"]["text"] for note in (second, third)]
    assert texts == ["my commands", "my modes"]


async def test_a_slow_new_session_holds_up_no_other() -> None:
    slow = anyio.Event()

    class Eager(AnAgent):
        async def new_session(self, cwd: str, **kwargs: Any) -> NewSessionResponse:
            await self.say(cwd, f"about {cwd}")
            if cwd == "/slow":
                await slow.wait()
            return NewSessionResponse(session_id=cwd)

    def new(number: int, cwd: str) -> dict[str, Any]:
        return {"id": number, "method": "session/new", "params": {"cwd": cwd, "mcpServers": []}}

    agent = Eager()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(new(1, "/slow"), new(2, "/quick"))
        assert (await lines.receive())["id"] == 2
        assert (await lines.receive())["params"]["sessionId"] == "/quick"
        await agent.say("/quick", "more")
        assert (await lines.receive())["params"]["sessionId"] == "/quick"
        slow.set()
        assert (await lines.receive())["id"] == 1
        assert (await lines.receive())["params"]["sessionId"] == "/slow"


@pytest.mark.parametrize("fails", ["raises", "returns nonsense"])
async def test_a_new_session_that_fails_keeps_no_updates_back(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(AnAgent):
        async def new_session(self, cwd: str, **kwargs: Any) -> Any:
            if fails == "raises":
                raise RequestError.auth_required()
            return 7

    agent = Failing()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send({"id": 1, "method": "session/new", "params": {"cwd": "/project", "mcpServers": []}})
        assert (await lines.receive())["error"]["code"] == (-32000 if fails == "raises" else -32603)
        await agent.say("other", "hello")
        assert (await lines.receive())["params"]["sessionId"] == "other"


async def test_what_is_told_about_a_session_that_does_not_come_to_be_is_dropped() -> None:
    class Failing(AnAgent):
        async def new_session(self, cwd: str, **kwargs: Any) -> Any:
            await self.say("never", "hello")
            raise RequestError.auth_required()

    agent = Failing()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send({"id": 1, "method": "session/new", "params": {"cwd": "/project", "mcpServers": []}})
        assert (await lines.receive())["error"]["code"] == -32000
        await agent.say("other", "hello")
        assert (await lines.receive())["params"]["sessionId"] == "other"


async def test_sessions_that_are_refused_are_not_remembered() -> None:
    async def refuses(session_id: str, **kwargs: Any) -> Any:
        raise RequestError.resource_not_found(session_id)

    agent = AnAgent(prompt=refuses, load_session=refuses)
    async with agent_by_lines(agent) as (lines, connection):
        await lines.send(prompt(1, "nobody"))
        assert (await lines.answer(1))["error"]["code"] == -32002
        load = {"sessionId": "nowhere", "cwd": "/", "mcpServers": []}
        await lines.send({"id": 2, "method": "session/load", "params": load})
        assert (await lines.answer(2))["error"]["code"] == -32002
        assert connection._new_sessions.known == set()


# What is not understood ----------------------------------------------------------------------------------------------------


async def test_a_method_without_a_handler_is_answered_so() -> None:
    async with agent_by_lines(AnAgent()) as (lines, _):
        for number, method in enumerate(["session/list", "session/close", "nonsense", "_ours"]):
            await lines.send({"id": number, "method": method, "params": {"sessionId": "s"}})
            error = (await lines.answer(number))["error"]
            assert (error["code"], error["data"]) == (-32601, {"method": method})


class PartOfAnAgent(Agent):
    """Derived from what describes an agent, with one method of its own."""

    async def authenticate(self, method_id: str, **kwargs: Any) -> Any:
        return {}


class PartOfAClient(Client):
    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None: ...


async def test_what_a_class_inherits_from_the_interface_is_no_handler() -> None:
    agent: Any = PartOfAnAgent
    client: Any = PartOfAClient
    async with agent_by_lines(agent()) as (lines, _):
        await lines.send({"id": 1, "method": "authenticate", "params": {"methodId": "x"}})
        assert (await lines.answer(1))["result"] == {}
        for number, method in enumerate(("session/prompt", "session/list", "logout", "_own"), 2):
            await lines.send({"id": number, "method": method, "params": {"sessionId": "s", "prompt": []}})
            assert (await lines.answer(number))["error"]["code"] == -32601
    async with client_by_lines(client()) as (lines, _):
        for number, method in enumerate(("fs/read_text_file", "terminal/create", "_own"), 1):
            await lines.send({"id": number, "method": method, "params": {"sessionId": "s"}})
            assert (await lines.answer(number))["error"]["code"] == -32601


async def test_parameters_that_do_not_fit_are_answered_with_the_reason() -> None:
    async with agent_by_lines(AnAgent()) as (lines, _):
        await lines.send({"id": 1, "method": "session/prompt", "params": {"sessionId": 7, "prompt": []}})
        error = (await lines.answer(1))["error"]
        assert error["code"] == -32602
        assert "sessionId" in error["message"] or "session_id" in error["message"]
        await lines.send({"id": 2, "method": "session/new"})
        assert (await lines.answer(2))["error"]["code"] == -32602


async def test_an_error_is_caught_by_the_name_that_it_was_raised_by() -> None:
    async def new_session(**kwargs: Any) -> NewSessionResponse:
        raise RequestError.auth_required({"authMethods": ["key"]})

    async with connected(AnAgent(new_session=new_session)) as (_, client):
        with pytest.raises(RequestError, match="Authentication required") as caught:
            await client.new_session(cwd="/project", mcp_servers=[])
    assert caught.value.code == -32000
    assert caught.value.data == {"authMethods": ["key"]}


async def test_an_answer_that_does_not_fit_is_an_error_that_says_so() -> None:
    async with client_by_lines(AClient()) as (lines, client), anyio.create_task_group() as group:

        async def ask() -> None:
            with pytest.raises(RpcError) as caught:
                await client.prompt("s", HELLO)
            assert "session/prompt" in str(caught.value.data)

        group.start_soon(ask)
        number = (await lines.receive())["id"]
        await lines.send({"id": number, "result": {"stopReason": 7}})


async def test_updates_of_an_unknown_kind_reach_the_client() -> None:
    seen: list[Any] = []

    async def session_update(session_id: str, update: Any, **kwargs: Any) -> None:
        seen.append(update)

    update = {"sessionUpdate": "from_the_future", "brightness": 11}
    async with client_by_lines(AClient(session_update=session_update)) as (lines, _):
        await lines.send({"method": "session/update", "params": {"sessionId": "s", "update": update}})
        while not seen:
            await anyio.sleep(0)
    assert seen[0].session_update == "from_the_future"
    assert to_dict(seen[0]) == update


async def test_unknown_fields_disturb_nobody() -> None:
    message = prompt(1)
    message["params"]["fromTheFuture"] = {"a": [1]}
    message["fromTheFuture"] = 1
    async with agent_by_lines(AnAgent()) as (lines, _):
        await lines.send(message)
        assert (await lines.answer(1))["result"] == {"stopReason": "end_turn"}


# What handlers are called with ------------------------------------------------------------------------------------------------


async def test_meta_comes_as_arguments_but_never_instead_of_a_field() -> None:
    seen: dict[str, Any] = {}

    async def prompts(session_id: str, prompt: list[Any], **kwargs: Any) -> PromptResponse:
        seen.update(kwargs, session_id=session_id)
        return PromptResponse(stop_reason="end_turn")

    message = prompt(1, "real")
    message["params"]["_meta"] = {"session_id": "spoofed", "self": 1, "trace": "abc"}
    async with agent_by_lines(AnAgent(prompt=prompts)) as (lines, _):
        await lines.send(message)
        await lines.answer(1)
    assert seen["session_id"] == "real"
    assert seen["trace"] == "abc"


async def test_a_handler_gets_what_it_has_parameters_for() -> None:
    class Terse(AnAgent):
        async def prompt(self, session_id: str, trace: str = "none") -> PromptResponse:  # type: ignore[override]
            return PromptResponse(stop_reason="end_turn", field_meta={"trace": trace})

        async def new_session(self) -> NewSessionResponse:  # type: ignore[override]
            return NewSessionResponse(session_id="s")

    async with in_session(Terse()) as (client, session_id):
        answer = await client.prompt(session_id, HELLO)
        assert answer.field_meta == {"trace": "none"}
        answer = await client.prompt(session_id, HELLO, trace="abc", other=1)
        assert answer.field_meta == {"trace": "abc"}


async def test_what_a_caller_passes_besides_goes_as_meta() -> None:
    async with client_by_lines(AClient()) as (lines, client):
        await client.cancel("s", why="bored")
        assert (await lines.receive())["params"] == {"sessionId": "s", "_meta": {"why": "bored"}}


async def test_a_handler_may_answer_with_a_dict() -> None:
    async def prompts(session_id: str, **kwargs: Any) -> Any:
        return {"stopReason": "max_tokens"}

    async with in_session(AnAgent(prompt=prompts)) as (client, session_id):
        assert (await client.prompt(session_id, HELLO)).stop_reason == "max_tokens"


# With asyncio's streams --------------------------------------------------------------------------------------------------------


@asyncio_only
async def test_over_streams_as_their_users_have_them() -> None:
    client = AClient()
    async with stream_pair() as ((reader, writer), (far_reader, far_writer)):
        running = asyncio.create_task(run_agent(AnAgent(), writer, reader))
        connection = connect_to_agent(client, far_writer, far_reader)
        await connection.initialize(protocol_version=PROTOCOL_VERSION)
        session = await connection.new_session(mcp_servers=[], cwd="/project")
        answer = await connection.prompt(session_id=session.session_id, prompt=[text_block("hello")])
        assert answer.stop_reason == "end_turn"
        assert client.told == ["hi"]
        assert (await connection.close()).clean
        await running  # it has seen the end
        assert writer.is_closing()


@asyncio_only
async def test_a_large_message_goes_through() -> None:
    text = "x" * 3_000_000

    class Echo(AnAgent):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            await self.say(session_id, kwargs["prompt"][0].text)
            return PromptResponse(stop_reason="end_turn")

    client = AClient()
    async with (
        stream_pair() as ((reader, writer), (far_reader, far_writer)),
        AgentSideConnection(Echo(), writer, reader),
        ClientSideConnection(client, far_writer, far_reader) as agent,
    ):
        await agent.prompt("s", [text_block(text)])
    assert client.told == [text]
