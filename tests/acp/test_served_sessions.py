"""Sessions of a served agent: kept, listed, taken up again, closed and deleted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce.acp import RequestError, image_block, text_block
from quiesce.acp import schema as s
from quiesce.acp.served import mcp as served_mcp
from quiesce.acp.served.mcp import connect_servers
from quiesce.acp.served.records import PAGE
from quiesce.acp.served.session import Session
from quiesce.agents import (
    Agent,
    Conversation,
    ItemAdded,
    MCPServerError,
    MemoryStore,
    RunStarted,
    SQLiteStore,
    function_tool,
)
from quiesce.models import AssistantMessage, ToolCall, UserMessage
from quiesce.testing import ScriptedModel, call
from quiesce.testing.scripted import Answer
from tests.acp.served_client import CWD, Client, Talk, check_items, connected

MCP_SERVER = Path(__file__).parent.parent / "agents" / "mcp_server.py"


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@function_tool(needs_approval=True)
async def dangerous() -> str:
    """Do something."""
    return "done"


def helper(*turns: Any) -> Agent[Any]:
    return Agent(name="helper", model=ScriptedModel(turns), tools=[add, dangerous])


def seen(client: Client) -> list[tuple[str, Any]]:
    """What was told, without what differs each time."""
    told: list[tuple[str, Any]] = []
    for one in client.updates:
        kind = one["sessionUpdate"]
        if kind.endswith("_chunk"):
            told.append((kind, one["content"].get("text", one["content"]["type"])))
        elif kind == "tool_call":
            told.append((kind, (one["title"], one["status"], one.get("rawOutput", {}).get("output"))))
    return told


async def test_a_session_is_loaded_with_all_of_its_history_told_before_the_answer() -> None:
    store = MemoryStore()
    first = helper(Answer(["I add."], [call("add", a=1, b=2), call("nobody")], reasoning="hm"), "It is 3.")
    async with connected(first, store=store) as talk:
        await talk.say([text_block("What is 1 + 2?"), image_block("AAAA", "image/png")])
    async with connected(helper("You asked for a sum."), store=store, cwd=None) as later:
        answer = await later.conn.load_session(CWD, talk.session_id)
        assert answer.modes is not None
        assert seen(later.client) == [
            ("user_message_chunk", "What is 1 + 2?"),
            ("user_message_chunk", "image"),
            ("agent_thought_chunk", "hm"),
            ("agent_message_chunk", "I add."),
            ("tool_call", ("add", "completed", "3")),
            (
                "tool_call",
                ("nobody", "failed", "There is no tool named 'nobody'. The tools are: add, dangerous."),
            ),
            ("agent_message_chunk", "It is 3."),
        ]
        later.session_id = talk.session_id
        assert await later.say("What did I ask?") == "end_turn"
        model: Any = later.served.agent.model
        assert model.requests[0].items[:-1] == later.items[:-2]
        assert len(later.items) == 10
    assert "session_info_update" not in later.client.kinds()  # it has its title


async def test_a_session_is_resumed_without_a_word() -> None:
    store = MemoryStore()
    async with connected(helper("one"), store=store) as talk:
        await talk.say("first")
    async with connected(helper("two"), store=store, cwd=None) as later:
        await later.conn.resume_session(talk.session_id, CWD)
        assert later.client.updates == []
        later.session_id = talk.session_id
        await later.say("second")
        assert [item.text for item in later.items if isinstance(item, AssistantMessage)] == ["one", "two"]


async def test_a_session_may_be_taken_up_elsewhere_while_it_is_open_here() -> None:
    async with connected(helper("one", "two", "three"), store=MemoryStore()) as talk:
        await talk.say()
        await talk.conn.load_session("/elsewhere", talk.session_id)
        assert talk.served._sessions[talk.session_id].cwd == "/elsewhere"
        await talk.say()
        [listed] = (await talk.conn.list_sessions()).sessions
        assert listed.cwd == "/elsewhere"
        check_items(talk.items)


async def test_a_session_that_is_answering_is_not_loaded() -> None:
    asked, answered = anyio.Event(), anyio.Event()

    async def slowly(request: Any) -> str:
        asked.set()
        await answered.wait()
        return "done"

    async with connected(helper(slowly), store=MemoryStore()) as talk, anyio.create_task_group() as tasks:
        tasks.start_soon(talk.say)
        await asked.wait()
        with pytest.raises(RequestError) as refused:
            await talk.conn.load_session(CWD, talk.session_id)
        assert refused.value.code == -32600
        answered.set()


async def test_a_session_whose_turn_has_just_begun_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    writing, written = anyio.Event(), anyio.Event()

    async with connected(helper("one"), store=MemoryStore()) as talk, anyio.create_task_group() as tasks:
        send = Conversation.asend_message

        async def slowly(conversation: Conversation, message: Any) -> Any:
            writing.set()
            await written.wait()
            return await send(conversation, message)

        monkeypatch.setattr(Conversation, "asend_message", slowly)
        tasks.start_soon(talk.say)
        await writing.wait()
        with pytest.raises(RequestError) as refused:
            await talk.conn.load_session(CWD, talk.session_id)
        assert refused.value.code == -32600
        written.set()


async def test_a_session_that_cannot_be_loaded_anew_goes_on_as_it_is() -> None:
    made: list[str] = []

    def context(session: Any) -> None:
        made.append(session.cwd)
        if session.cwd == "/wrong":
            raise LookupError("nothing here")

    async with connected(helper("one", "two", "three"), store=MemoryStore(), context=context) as talk:
        await talk.say()
        for cwd in ("relative", "/wrong"):
            with pytest.raises(RequestError):
                await talk.conn.load_session(cwd, talk.session_id)
            with pytest.raises(RequestError):
                await talk.conn.resume_session(talk.session_id, cwd)
            assert talk.served._sessions[talk.session_id].cwd == CWD
        assert await talk.say() == "end_turn"
        check_items(talk.items)
    assert made == [CWD, "/wrong", "/wrong"]


async def test_a_load_that_is_cancelled_leaves_no_session_and_keeps_the_one_that_was() -> None:
    closed: list[str] = []
    loading = anyio.Event()

    async def context(session: Any) -> None:
        close = session.close

        async def closing() -> None:
            await close()
            closed.append(session.cwd)

        session.close = closing
        if session.cwd == "/slow":
            loading.set()
            await anyio.sleep_forever()

    async with connected(helper("one", "two"), store=MemoryStore(), context=context) as talk:
        await talk.say()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.conn.load_session, "/slow", talk.session_id)
            await loading.wait()
            with pytest.raises(RequestError) as refused:
                await talk.say()
            assert "is being loaded" in str(refused.value.data)
            tasks.cancel_scope.cancel()
        while not closed:
            await anyio.sleep(0.01)
        assert closed == ["/slow"]
        assert await talk.say() == "end_turn"
        assert talk.served._sessions[talk.session_id].cwd == CWD


async def test_a_load_that_fails_while_the_history_is_told_leaves_no_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    async with connected(helper("one"), store=store) as talk:
        await talk.say()
    async with connected(helper("two"), store=store, cwd=None) as later:
        client: Any = later.served._sessions.client

        async def fails(session_id: str, update: Any, **kwargs: Any) -> None:
            raise LookupError("it cannot be told")

        with monkeypatch.context() as patched:
            patched.setattr(client, "session_update", fails)
            with pytest.raises(RequestError):
                await later.conn.load_session(CWD, talk.session_id)
        assert len(later.served._sessions) == 0
        await later.conn.load_session(CWD, talk.session_id)
        assert await later.say(session_id=talk.session_id) == "end_turn"


async def test_what_is_no_session_is_not_deleted() -> None:
    store = MemoryStore()
    other = Conversation(helper("one"), store=store, conversation_id="payroll")
    other.send_message("go")
    await other.arun()
    await other.close()
    async with connected(helper("two"), store=store) as talk:
        await talk.say()
        await talk.conn.delete_session("payroll")
        await talk.conn.delete_session("nobody")
        await talk.conn.delete_session(talk.session_id)
    assert await store.ids() == ["payroll"]


async def test_two_connections_take_turns_on_one_session_and_one_at_a_time_runs_it() -> None:
    store = MemoryStore()
    async with connected(helper("one", "three", "four"), store=store) as talk:
        await talk.say()
        async with connected(helper("two"), store=store, cwd=None) as other:
            await other.conn.load_session(CWD, talk.session_id)
            await other.say(session_id=talk.session_id)
            assert await talk.say() == "end_turn"
            assert [item.text for item in talk.items if isinstance(item, AssistantMessage)] == [
                *["one", "two", "three"]
            ]
            lease = await store.lease(talk.session_id)
            await lease.log.append([RunStarted(run_id="of another process")])
            with pytest.raises(RequestError) as refused:
                await talk.say()
            assert "is being run elsewhere" in str(refused.value.data)
            assert refused.value.code == -32600
            await lease.release()
            assert await talk.say() == "end_turn"
            check_items(talk.items)


async def test_a_program_that_died_while_the_user_was_asked_leaves_a_session_that_can_be_loaded() -> None:
    store = MemoryStore()
    async with connected(helper("fine"), store=store) as talk:
        await talk.say()
    # what the log looks like in the middle of it
    dead = Conversation(helper(call("dangerous")), store=store, conversation_id=talk.session_id)
    dead.send_message("go")
    assert await dead.arun() == "waiting_for_approval"
    async with connected(helper("well"), store=store, cwd=None) as later:
        await later.conn.load_session(CWD, talk.session_id)
        assert seen(later.client)[-1][1][:2] == ("dangerous", "failed")
        later.session_id = talk.session_id
        check_items(later.items)
        assert await later.say() == "end_turn"
        check_items(later.items)


async def test_a_call_whose_result_was_lost_is_told_as_failed() -> None:
    store = MemoryStore()
    async with connected(helper("fine"), store=store) as talk:
        await talk.say()
    log = store.open(talk.session_id)
    log.read_sync()
    log.append_sync([ItemAdded(item=UserMessage("go")), ItemAdded(item=ToolCall("c", "add"))])
    async with connected(helper(), store=store, cwd=None) as later:
        await later.conn.load_session(CWD, talk.session_id)
    assert later.client.statuses("c") == ["failed"]


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_session_that_is_loaded_twice_at_once_is_open_once(tmp_path: Path) -> None:
    async with connected(helper("one", "two"), store=MemoryStore(), cwd=str(tmp_path)) as talk:
        await talk.say()
        opened: list[Any] = []

        async def load() -> None:
            await talk.conn.load_session(str(tmp_path), talk.session_id, mcp_servers=[mcp_server()])
            opened.extend(talk.served._sessions[talk.session_id].servers)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load)
            tasks.start_soon(load)
        [used] = talk.served._sessions[talk.session_id].servers
        assert used.connected
        assert [one.connected for one in {id(one): one for one in opened}.values()].count(True) == 1
        assert await talk.say() == "end_turn"


async def test_to_load_a_session_changes_nothing_in_it() -> None:
    store = MemoryStore()
    async with connected(helper("one"), store=store) as talk:
        await talk.say()
        before = store.open(talk.session_id).read_sync()
        await talk.conn.load_session(CWD, talk.session_id)
        await talk.conn.resume_session(talk.session_id, CWD)
        assert store.open(talk.session_id).read_sync() == before


# Listing


async def say_in(talk: Talk, cwd: str, text: str) -> str:
    session_id = (await talk.conn.new_session(cwd=cwd, mcp_servers=[])).session_id
    await talk.say(text, session_id)
    return session_id


async def test_sessions_are_listed_the_newest_first_with_where_and_what() -> None:
    store = MemoryStore()
    async with connected(helper(*["ok"] * 3), store=store, cwd=None) as talk:
        await talk.conn.new_session(cwd="/empty", mcp_servers=[])
        ids = [
            await say_in(talk, cwd, text)
            for cwd, text in (("/one", "First\nline"), ("/two", "Second"), ("/one", "Third"))
        ]
        Conversation(helper(), store=store, conversation_id="zzz").send_message("none of ours")
        answer = await talk.conn.list_sessions()
        told = {one.session_id: (one.cwd, one.title) for one in answer.sessions}
        assert told == dict(zip(ids, [("/one", "First"), ("/two", "Second"), ("/one", "Third")], strict=True))
        assert [one.session_id for one in answer.sessions] == sorted(ids, reverse=True)
        assert answer.next_cursor is None
        assert all(
            one.updated_at is not None and one.updated_at.endswith("+00:00") for one in answer.sessions
        )
        assert {one.session_id for one in (await talk.conn.list_sessions(cwd="/one")).sessions} == {
            ids[0],
            ids[2],
        }


async def test_many_sessions_are_listed_a_page_at_a_time() -> None:
    count = PAGE + 3
    async with connected(helper(*["ok"] * count), store=MemoryStore(), cwd=None) as talk:
        ids = {await say_in(talk, CWD, "hello") for _ in range(count)}
        first = await talk.conn.list_sessions()
        assert len(first.sessions) == PAGE
        second = await talk.conn.list_sessions(cursor=first.next_cursor)
        assert second.next_cursor is None
        assert {one.session_id for one in (*first.sessions, *second.sessions)} == ids
        assert len(second.sessions) == 3


# Closing and deleting


async def test_a_closed_session_takes_nothing_and_can_be_loaded_again() -> None:
    async with connected(helper("one", "two"), store=MemoryStore()) as talk:
        await talk.say()
        await talk.conn.close_session(talk.session_id)
        with pytest.raises(RequestError):
            await talk.say()
        await talk.conn.load_session(CWD, talk.session_id)
        assert await talk.say() == "end_turn"


async def test_a_deleted_session_is_gone_for_good_and_to_delete_it_again_is_no_error() -> None:
    async with connected(helper("one"), store=MemoryStore()) as talk:
        await talk.say()
        for _ in range(2):
            await talk.conn.delete_session(talk.session_id)
        assert (await talk.conn.list_sessions()).sessions == []
        with pytest.raises(RequestError) as gone:
            await talk.conn.load_session(CWD, talk.session_id)
        assert gone.value.code == -32002


# On the disk


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
@pytest.mark.parametrize("given", ["path", "store"])
async def test_sessions_survive_the_program_in_a_file(tmp_path: Path, given: str) -> None:
    path = tmp_path / "sessions.db"
    store = SQLiteStore(path) if given == "store" else None
    async with connected(helper([call("add", a=1, b=2)], "3"), store=store or path) as talk:
        await talk.say("add")
    if store is not None:
        await store.close()
    async with connected(helper("again"), store=str(path), cwd=None) as later:
        await later.conn.load_session(CWD, talk.session_id)
        assert [kind for kind, _ in seen(later.client)] == [
            "user_message_chunk",
            "tool_call",
            "agent_message_chunk",
        ]
        assert await later.say(session_id=talk.session_id) == "end_turn"
        assert len((await later.conn.list_sessions()).sessions) == 1


# MCP servers of the client's


def mcp_server(*arguments: str) -> s.McpServerStdio:
    return s.McpServerStdio(
        name="tools",
        command=sys.executable,
        args=[str(MCP_SERVER), *arguments],
        env=[s.EnvVariable(name="FROM_CLIENT", value="yes")],
    )


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_an_mcp_server_of_the_client_serves_its_session_and_ends_with_it(tmp_path: Path) -> None:
    agent = helper(call("echo", text="hi"), "done", "alone")
    async with connected(agent, cwd=None) as talk:
        session = await talk.conn.new_session(cwd=str(tmp_path), mcp_servers=[mcp_server()])
        assert await talk.say(session_id=session.session_id) == "end_turn"
        assert [one["title"] for one in talk.client.asked] == ["echo"]  # nobody here knows what it does
        assert "hi" in talk.client.last("call_1")["rawOutput"]["output"]
        [server] = talk.served._sessions[session.session_id].servers
        process: Any = server._connection().process
        await talk.conn.close_session(session.session_id)
        assert process.returncode is not None
        assert not server.connected
        # another session has none
        other = (await talk.conn.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await talk.say(session_id=other)
        model: Any = agent.model
        assert [tool.name for tool in model.requests[-1].tools] == ["add", "dangerous"]


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_an_mcp_server_ends_with_the_connection(tmp_path: Path) -> None:
    async with connected(helper(), cwd=None) as talk:
        session = await talk.conn.new_session(cwd=str(tmp_path), mcp_servers=[mcp_server()])
        process: Any = talk.served._sessions[session.session_id].servers[0]._connection().process
        assert process.returncode is None
        await talk.conn.close()
        await talk.served._sessions.client.wait_closed()  # type: ignore[union-attr]
        assert process.returncode is not None


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_session_with_an_mcp_server_that_does_not_work_is_refused_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    broken = s.McpServerStdio(name="broken", command=sys.executable, args=["-c", "exit('no')"], env=[])
    async with connected(helper(), cwd=None) as talk:
        with pytest.raises(RequestError) as refused:
            await talk.conn.new_session(cwd=str(tmp_path), mcp_servers=[mcp_server(), broken])
        assert "'broken'" in str(refused.value.data)
        assert len(talk.served._sessions) == 0


async def test_an_mcp_server_of_a_kind_that_was_not_offered_is_refused() -> None:
    server = s.SseMcpServer(name="old", url="http://localhost/sse", headers=[])
    async with connected(helper(), cwd=None) as talk:
        with pytest.raises(RequestError) as refused:
            await talk.conn.new_session(cwd=CWD, mcp_servers=[server])
        assert refused.value.code == -32602


class FakeServer:
    """An MCP server that is not there. Its name says whether it refuses the connection or raises when it is closed."""

    closed: list[str]

    def __init__(self, name: str) -> None:
        self.name = name

    async def connect(self) -> None:
        if self.name == "refuses":
            raise MCPServerError("refuses")

    async def close(self) -> None:
        self.closed.append(self.name)
        if self.name.startswith("raises"):
            raise LookupError(self.name)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the MCP servers that were closed, which are all fake ones."""
    names: list[str] = []
    monkeypatch.setattr(FakeServer, "closed", names, raising=False)
    monkeypatch.setattr(served_mcp, "_server", lambda description, *_: FakeServer(description))
    return names


async def test_closing_a_session_closes_every_mcp_server_also_if_one_raises(closed: list[str]) -> None:
    session = Session("one", CWD, [], None, None)  # type: ignore[arg-type]
    session.servers = await connect_servers(["raises 1", "fine", "raises 2"], CWD, True)
    with pytest.raises(LookupError) as caught:
        await session.close()
    assert closed == ["raises 1", "fine", "raises 2"]
    assert str(caught.value.__context__) == "raises 1"


async def test_a_conversation_that_cannot_be_closed_keeps_no_mcp_server_open(closed: list[str]) -> None:
    class Broken:
        async def _close(self, **options: Any) -> None:
            raise ValueError("the conversation")

    session = Session("one", CWD, [], None, None)  # type: ignore[arg-type]
    session.conversation = Broken()  # type: ignore[assignment]
    session.servers = await connect_servers(["raises", "fine"], CWD, True)
    with pytest.raises(LookupError) as caught:
        await session.close()
    assert closed == ["raises", "fine"]
    assert str(caught.value.__context__) == "the conversation"


async def test_a_session_that_is_refused_closes_every_mcp_server_also_if_one_raises(
    closed: list[str],
) -> None:
    with pytest.raises(LookupError):
        await connect_servers(["raises", "fine", "refuses"], CWD, True)
    assert closed == ["raises", "fine"]


async def test_the_end_of_a_connection_closes_every_session_also_if_one_raises(closed: list[str]) -> None:
    async with connected(helper(), cwd=None) as talk:
        sessions = talk.served._sessions
        for place in ("/first", "/second", "/third"):
            session_id = (await talk.conn.new_session(cwd=place, mcp_servers=[])).session_id
            sessions[session_id].servers = [FakeServer(f"raises {place}")]  # type: ignore[list-item]
        with pytest.raises(LookupError):
            await sessions.close_all()
        assert closed == ["raises /third", "raises /second", "raises /first"]
        assert len(sessions) == 0
