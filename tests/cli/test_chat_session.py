"""The chat without a terminal: sending, stopping in every phase, approvals, commands."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace
from quiesce.agents import Conversation, MemoryStore, SQLiteStore, Store
from quiesce.kernel.process import procfs
from quiesce.models import AssistantMessage, Model, ToolResult, UserMessage
from quiesce_chat.script import load_script
from quiesce_chat.session import session
from quiesce_chat.session.activity import MODEL
from quiesce_chat.session.session import Chat
from quiesce_chat.session.slash import InputHandler
from quiesce_chat.tools import programs, toolbox

from .chat_parts import Recorder, calls, write_script

pytestmark = [pytest.mark.worlds("asyncio"), pytest.mark.real_time]

STUBBORN = "trap '' TERM; echo begun; while :; do sleep 0.05; done"


@asynccontextmanager
async def chatting(
    tmp_path: Path,
    *turns: Any,
    answers: tuple[Any, ...] = (),
    store: Store | None = None,
    **options: Any,
) -> AsyncIterator[tuple[InputHandler, Recorder]]:
    face = Recorder(*answers)
    folder = tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    model = load_script(write_script(tmp_path / "script.json", *turns))
    async with Chat(model, face, folder=folder.resolve(), store=store, **options) as chat:
        yield InputHandler(chat, _no_other_model, _close_model), face


async def _no_other_model(spec: str) -> Model:
    raise LookupError(f"there is no model {spec!r}")


async def _close_model(model: Model) -> None:
    pass


def is_alive(pid: int) -> bool:
    proc = procfs.look_up(pid)
    return proc is not None and not proc.zombie


async def test_a_run_stopped_before_its_first_step_never_asks_the_model(tmp_path: Path) -> None:
    async with chatting(tmp_path, "Too soon.") as (handler, face):
        await handler.handle("go")
        handler.chat.stop()
        await handler.chat.wait_idle()
        assert face.all("text") == []
        assert face.all("said")[0].startswith("stopped between two steps")
        await handler.handle("/resume")
        await handler.chat.wait_idle()
        assert face.all("text") == ["Too soon."]


async def test_an_answer_is_streamed_and_kept(tmp_path: Path) -> None:
    async with chatting(tmp_path, {"pieces": ["Good ", "day."]}) as (handler, face):
        await handler.handle("hello")
        await handler.chat.wait_idle()
        assert face.told == [("text", "Good "), ("text", "day."), ("end", "")]
        assert handler.chat.conversation.items == [UserMessage("hello"), AssistantMessage("Good day.")]
        assert handler.chat.running == {}


async def test_stopping_the_model_in_mid_sentence_keeps_what_it_said_and_tells_in_one_line(
    tmp_path: Path,
) -> None:
    async with chatting(tmp_path, {"pieces": ["Once ", "upon ", "never"], "delay": 0.0}, {"after": 3600}) as (
        handler,
        face,
    ):
        await handler.handle("tell")
        await handler.chat.wait_idle()
        await handler.handle("more")
        await face.until(lambda: MODEL in handler.chat.running)
        assert handler.chat.stop()
        await handler.chat.wait_idle()
        (line,) = face.all("said")
        assert line.startswith("stopped scripted answering in ")
        assert line.endswith(": nothing left")
        assert handler.chat.conversation.status == "paused"
        assert not handler.chat.stop()  # nothing runs any more


async def test_a_ctrl_c_just_behind_the_end_of_a_run_does_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "READING_TIME", 3600.0)
    async with chatting(tmp_path, "Good day.", {"after": 3600}) as (handler, face):
        assert handler.chat.is_visibly_idle
        assert not handler.chat.interrupt()  # nothing ran: it leaves
        await handler.handle("hello")
        await handler.chat.wait_idle()
        assert handler.chat.interrupt()
        assert handler.chat.interrupt()
        assert face.all("said") == ["Already stopped. Press Ctrl-C again to exit."] * 2
        await handler.handle("more")
        await face.until(lambda: MODEL in handler.chat.running)
        assert handler.chat.interrupt()
        await handler.chat.wait_idle()
        assert face.all("said")[2].startswith("stopped scripted answering in ")
        monkeypatch.setattr(session, "READING_TIME", 0.0)
        assert not handler.chat.interrupt()


async def test_stopping_between_two_pieces_marks_the_text_as_cut(tmp_path: Path) -> None:
    async with chatting(tmp_path, {"pieces": ["Once ", *["and "] * 1000], "delay": 0.02}) as (handler, face):
        await handler.handle("tell")
        await face.until(lambda: len(face.all("text")) > 1)
        handler.chat.stop()
        await handler.chat.wait_idle()
        assert ("cut", "") in face.told
        said = [item for item in handler.chat.conversation.items if isinstance(item, AssistantMessage)]
        assert said[0].interrupted
        assert said[0].text.startswith("Once and")


async def test_stopping_a_shell_command_ends_its_whole_tree(tmp_path: Path) -> None:
    command = "sleep 3600 & echo child $!; sleep 3600"
    async with chatting(tmp_path, calls("shell", command=command), answers=("yes",)) as (handler, face):
        await handler.handle("go")
        await face.until(lambda: "\n" in face.printed())
        child = int(face.printed().split()[1])
        assert is_alive(child)
        handler.chat.stop()
        await handler.chat.wait_idle()
        assert not is_alive(child)
        (line,) = face.all("said")
        assert line.startswith("stopped shell sleep 3600 & echo")
        result = handler.chat.conversation.items[-2]
        assert isinstance(result, ToolResult)
        assert result.outcome == "interrupted"
        assert "child" in result.output


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """So much time to end that nobody waits for it in a test."""
    monkeypatch.setattr(session, "GRACE", Grace(cancel=60, terminate=60, kill=60))
    monkeypatch.setattr(programs, "GRACE", Grace(cancel=60, terminate=60, kill=60))


@pytest.mark.usefixtures("patience")
async def test_a_second_press_is_faster_and_a_third_kills_at_once(tmp_path: Path) -> None:
    async with chatting(tmp_path, calls("shell", command=STUBBORN), answers=("yes",)) as (handler, face):
        await handler.handle("go")
        await face.until(lambda: "begun" in face.printed())
        for _ in range(3):
            assert handler.chat.stop()
        await handler.chat.wait_idle()
        *faster, line = face.all("said")
        assert faster == ["Stopping faster.", "Stopping now."]
        assert line.endswith(": nothing left")


async def test_stopping_python_in_a_process_needs_nothing_of_it(tmp_path: Path) -> None:
    code = "print('begun', flush=True)\nwhile True: pass"
    async with chatting(tmp_path, calls("python", code=code), answers=("yes",)) as (handler, face):
        await handler.handle("go")
        await face.until(lambda: "begun" in face.printed())
        handler.chat.stop()
        await handler.chat.wait_idle()
        assert face.all("said")[0].startswith("stopped python print('begun'")


async def test_a_search_for_an_expression_that_takes_for_ever_can_be_stopped(tmp_path: Path) -> None:
    async with chatting(tmp_path, calls("search_files", pattern="(a+)+$")) as (handler, face):
        (handler.chat.folder / "trap.txt").write_text("a" * 60 + "!\n")
        await handler.handle("go")
        await face.until(lambda: any(item.name == "search_files" for item in handler.chat.running.values()))
        handler.chat.stop()
        await handler.chat.wait_idle()
        (line,) = face.all("said")
        assert line.startswith("stopped search_files (a+)+$ in .")
        assert line.endswith("nothing left")


async def test_a_search_that_takes_too_long_fails_and_the_model_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolbox, "LONGEST_SEARCH", 0.05)
    async with chatting(tmp_path, calls("search_files", pattern="(a+)+$"), "Then not.") as (handler, _face):
        (handler.chat.folder / "trap.txt").write_text("a" * 60 + "!\n")
        await handler.handle("go")
        await handler.chat.wait_idle()
        result = next(item for item in handler.chat.conversation.items if isinstance(item, ToolResult))
        assert result.outcome == "failed"
        assert "try a simpler expression" in result.output


async def test_what_was_found_and_what_is_no_expression_is_told_to_the_model(tmp_path: Path) -> None:
    searches = [{"name": "search_files", "arguments": {"pattern": pattern}} for pattern in ("bea[n]s", "(a")]
    async with chatting(tmp_path, {"calls": searches}, "So.") as (handler, _face):
        (handler.chat.folder / "a.txt").write_text("sow beans\n")
        await handler.handle("go")
        await handler.chat.wait_idle()
        found, failed = (item for item in handler.chat.conversation.items if isinstance(item, ToolResult))
        assert found.output == "a.txt:1: sow beans\n"
        assert failed.outcome == "failed"
        assert "'(a' is not a valid regular expression" in failed.output


async def test_a_command_has_a_whole_second_to_clean_up_when_it_is_stopped(tmp_path: Path) -> None:
    async with chatting(tmp_path, calls("shell", command=STUBBORN), answers=("yes",)) as (handler, face):
        await handler.handle("go")
        await face.until(lambda: "begun" in face.printed())
        began = time.monotonic()
        handler.chat.stop()
        await handler.chat.wait_idle()
        assert time.monotonic() - began >= 0.99
        assert face.all("said")[-1].endswith(": nothing left")


async def test_stopping_while_a_question_is_open_makes_no_call_and_leaves_it_open(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    async with chatting(tmp_path, calls("shell", command=f"touch {marker}"), "Fine.") as (handler, face):
        await handler.handle("go")
        await face.until(lambda: face.asked)
        handler.chat.stop()
        await handler.chat.wait_idle()
        assert face.all("said")[0].startswith("stopped question: shell touch")
        face.answers.append("no")
        await handler.handle("/resume")  # asked again
        await handler.chat.wait_idle()
        assert len(face.asked) == 2
        assert not marker.exists()
        assert face.all("returned") == ["shell rejected"]


async def test_whatever_changes_something_is_asked_about_and_always_lasts_for_the_session(
    tmp_path: Path,
) -> None:
    write = calls("write_file", path="a.txt", content="new\n")
    shell = calls("shell", command="echo once")
    async with chatting(tmp_path, write, shell, shell, "Done.", answers=("no", "always")) as (handler, face):
        (handler.chat.folder / "a.txt").write_text("old\n")
        await handler.handle("go")
        await handler.chat.wait_idle()
        assert [one.call.name for one in face.asked] == ["write_file", "shell"]
        assert "-old\n+new" in face.asked[0].preview
        assert (handler.chat.folder / "a.txt").read_text() == "old\n"
        assert face.printed() == "once\nonce\n"


async def test_what_is_sent_while_it_runs_is_the_next_message(tmp_path: Path) -> None:
    async with chatting(tmp_path, {"text": "First.", "after": 0.2}, "Second.") as (handler, face):
        await handler.handle("one")
        await face.until(lambda: MODEL in handler.chat.running)
        await handler.handle("two")
        await handler.chat.wait_idle()
        assert face.all("text") == ["First.", "Second."]
        assert not handler.chat.has_queued_messages


async def test_what_was_sent_before_a_stop_is_kept_for_the_next_run(tmp_path: Path) -> None:
    async with chatting(tmp_path, {"after": 3600}, "Both.") as (handler, face):
        await handler.handle("one")
        await face.until(lambda: MODEL in handler.chat.running)
        await handler.handle("two")
        handler.chat.stop()
        await handler.chat.wait_idle()
        assert handler.chat.has_queued_messages
        await handler.handle("")  # Enter alone sends it on
        await handler.chat.wait_idle()
        assert face.all("text") == ["Both."]


async def test_a_pause_lets_the_step_finish_and_resume_goes_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = calls("shell", command=f"while [ ! -e {gate} ]; do sleep 0.02; done; echo done")
    async with chatting(tmp_path, slow, "Over.", approve_all=True) as (handler, face):
        await handler.handle("go")
        await face.until(lambda: any(item.name == "shell" for item in handler.chat.running.values()))
        await handler.handle("/pause")
        gate.touch()
        await handler.chat.wait_idle()
        assert face.all("returned") == ["shell finished"]
        assert face.all("said")[-1].startswith("Paused")
        await handler.handle("/resume")
        await handler.chat.wait_idle()
        assert face.all("text") == ["Over."]


@pytest.mark.usefixtures("patience")
async def test_a_command_of_the_user_needs_no_approval_and_can_be_stopped(tmp_path: Path) -> None:
    async with chatting(tmp_path) as (handler, face):
        await handler.handle("!echo mine; exit 3")
        await handler.chat.wait_idle()
        assert face.printed() == "mine\n"
        assert face.all("returned") == ["! status 3"]
        await handler.handle(f"!{STUBBORN}")
        await face.until(lambda: "begun" in face.printed())
        for _ in range(3):
            handler.chat.stop()
        await handler.chat.wait_idle()
        assert face.all("said")[-1].startswith("stopped ! trap '' TERM")
        assert face.all("said")[-1].endswith("nothing left")
        assert not face.asked


async def test_a_command_stopped_before_it_has_begun_is_stopped(tmp_path: Path) -> None:
    async with chatting(tmp_path) as (handler, face):
        await handler.handle("!sleep 3600")
        handler.chat.stop()
        await handler.chat.wait_idle()
        assert "stopped" in face.all("said")[-1]
        assert handler.chat.activity is None


async def test_the_output_of_a_command_is_shared_only_when_told_to(tmp_path: Path) -> None:
    async with chatting(tmp_path, "I see.") as (handler, _face):
        await handler.handle("!echo secret")
        await handler.chat.wait_idle()
        assert handler.chat.conversation.items == []
        await handler.handle("/share what is this?")
        await handler.chat.wait_idle()
        said = handler.chat.conversation.items[0]
        assert isinstance(said, UserMessage)
        assert "secret" in str(said.content)
        assert str(said.content).endswith("what is this?")


async def test_what_fails_is_told_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with chatting(tmp_path, {"error": "the server is on fire"}, "Again here.") as (handler, face):
        await handler.handle("hello")
        await handler.chat.wait_idle()
        assert face.all("complained") == ["the server is on fire"]
        assert handler.chat.failures == 1
        await handler.handle("hello?")
        await handler.chat.wait_idle()
        assert face.all("text") == ["Again here."]


async def test_bytes_that_are_no_text_are_replaced_and_that_is_said(tmp_path: Path) -> None:
    async with chatting(tmp_path, "Hm.") as (handler, face):
        await handler.handle(b"caf\xe9".decode("utf-8", "surrogateescape"))
        await handler.chat.wait_idle()
        assert handler.chat.conversation.items[0] == UserMessage("caf\ufffd")
        assert face.all("said") == ["1 byte that is not UTF-8 was replaced by \ufffd"]


async def test_leaving_while_something_runs_stops_it_and_says_so(tmp_path: Path) -> None:
    async with chatting(tmp_path, calls("shell", command="echo begun; sleep 3600"), answers=("yes",)) as (
        handler,
        face,
    ):
        await handler.handle("go")
        await face.until(lambda: "begun" in face.printed())
    assert face.all("said")[-1].startswith("stopped shell echo begun")


async def test_a_conversation_goes_on_in_another_chat(tmp_path: Path) -> None:
    store = MemoryStore()
    async with chatting(tmp_path, "One.", store=store, conversation_id="c") as (handler, _):
        await handler.handle("hello")
        await handler.chat.wait_idle()
    async with chatting(tmp_path, "Two.", store=store, conversation_id="c") as (handler, _face):
        await handler.handle("again")
        await handler.chat.wait_idle()
        assert [
            item.content for item in handler.chat.conversation.items if isinstance(item, UserMessage)
        ] == [
            "hello",
            "again",
        ]


async def test_tree_history_help_and_model_answer_also_while_it_runs(tmp_path: Path) -> None:
    async with chatting(tmp_path, calls("shell", command="echo begun; sleep 3600"), answers=("yes",)) as (
        handler,
        face,
    ):
        await handler.handle("go")
        await face.until(lambda: "begun" in face.printed())
        for command in ("/tree", "/history", "/help", "/model"):
            await handler.handle(command)
        tree, history, help_, model = face.all("said")
        assert "process shell" in tree
        assert "programs.py" in tree
        assert history.startswith("› go")
        assert "/pause" in help_
        assert model.startswith("scripted answers")
        await handler.handle("/modle")
        assert face.all("complained") == ["there is no /modle; did you mean /model?"]
        handler.chat.stop()
        await handler.chat.wait_idle()


@pytest.mark.parametrize("text", ["/etc/hosts is what?", "/* a comment */", "// another", "/tree\nof life"])
async def test_what_only_looks_like_a_command_is_a_message(tmp_path: Path, text: str) -> None:
    async with chatting(tmp_path, "Yes.") as (handler, face):
        await handler.handle(text)
        await handler.chat.wait_idle()
        assert face.all("text") == ["Yes."]
        assert handler.chat.conversation.items[0] == UserMessage(text)


async def test_a_conversation_that_another_chat_runs_is_answered_there_and_continued_here_later(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "kept.db")
    async with chatting(tmp_path, "Here I am.", store=store, conversation_id="c") as (handler, face):
        lease = await store.lease("c")  # another chat runs it
        await handler.handle("hello")
        await handler.chat.wait_idle()
        assert face.all("complained")[0].startswith("This conversation is being run by another chat.")
        await lease.release()
        await handler.handle("/resume")
        await handler.chat.wait_idle()
        assert face.all("text") == ["Here I am."]
    await store.close()


async def test_a_model_that_cannot_be_had_changes_nothing(tmp_path: Path) -> None:
    async with chatting(tmp_path, "Still me.") as (handler, face):
        await handler.handle("/model other:one")
        await handler.chat.wait_idle()
        assert face.all("complained") == ["LookupError: there is no model 'other:one'"]
        await handler.handle("hello")
        await handler.chat.wait_idle()
        assert face.all("text") == ["Still me."]


async def test_the_search_for_a_model_is_seen_stopped_and_waited_for(tmp_path: Path) -> None:
    async with chatting(tmp_path, "Still me.") as (handler, face):

        async def silent(spec: str) -> Model:
            await anyio.sleep_forever()
            raise AssertionError

        handler.resolve = silent
        await handler.handle("/model http://localhost:1/v1")
        await face.until(lambda: MODEL in handler.chat.running)
        assert handler.chat.running.summaries() == ["looking for http://localhost:1/v1"]
        await handler.handle("/tree")  # is answered meanwhile
        assert "look for a model" in face.all("said")[-1]
        await handler.handle("hello")
        assert face.all("said")[-1] == "Queued: this will be sent when the model has been found."
        await handler.handle("!echo no")
        assert face.all("complained") == ["Something is already running. Stop it first, or wait."]
        assert handler.chat.stop()
        await handler.chat.wait_idle()
        assert any(
            line.startswith("stopped looking for http://localhost:1/v1 in") for line in face.all("said")
        )
        assert face.all("text") == []  # it was not meant for who is there
        assert face.all("said")[-1].startswith("Your queued message was not sent. Press Enter to send it")
        await handler.handle("")
        await handler.chat.wait_idle()
        assert face.all("text") == ["Still me."]


async def test_what_was_sent_during_a_run_that_fails_is_not_forgotten(tmp_path: Path) -> None:
    async with chatting(tmp_path, {"after": 0.1, "error": "no credit left"}, "Two, then.") as (handler, face):
        await handler.handle("one")
        await face.until(lambda: MODEL in handler.chat.running)
        await handler.handle("two")
        await handler.chat.wait_idle()
        assert face.all("complained") == ["no credit left"]
        assert face.all("said")[-1].startswith("Your queued message was not sent. Press Enter to send it")
        await handler.handle("")
        await handler.chat.wait_idle()
        assert face.all("text") == ["Two, then."]


async def test_an_agent_that_comes_to_no_end_is_stopped_and_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_TURNS", 2)
    turns = [calls("list_files"), calls("list_files", path="."), "Enough."]
    async with chatting(tmp_path, *turns) as (handler, face):
        await handler.handle("look")
        await handler.chat.wait_idle()
        assert face.all("complained") == [
            "Stopped after 2 turns without a final answer. Type /resume to continue."
        ]
        await handler.handle("/resume")
        await handler.chat.wait_idle()
        assert face.all("text") == ["Enough."]


async def test_another_model_answers_from_now_on(tmp_path: Path) -> None:
    async with chatting(tmp_path, "First.") as (handler, face):
        await handler.handle("hello")
        await handler.chat.wait_idle()
        other = load_script(write_script(tmp_path / "other.json", "Second."))

        async def there(spec: str) -> Model:
            return other

        handler.resolve = there
        await handler.handle("/model other")
        await handler.chat.wait_idle()
        assert face.all("said") == ["scripted answers from now on."]
        await handler.handle("hello")
        await handler.chat.wait_idle()
        assert face.all("text") == ["First.", "Second."]


async def test_two_runs_are_never_at_once_whatever_is_sent_while_kept_messages_go_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chatting(tmp_path, {"text": "Yes.", "after": 0.1}, "Yes.", "Yes.") as (handler, face):
        send, gate = Conversation.asend_message, anyio.Event()

        async def slowly(conversation: Conversation, message: str) -> Any:
            if message == "one":
                await gate.wait()
            return await send(conversation, message)

        await handler.handle("!true")
        await handler.handle("one")
        monkeypatch.setattr(Conversation, "asend_message", slowly)
        await face.until(lambda: face.all("returned"))
        await handler.handle("two")  # while the first is on its way into the conversation
        gate.set()
        await handler.chat.wait_idle()
        assert handler.chat.failures == 0
        assert face.all("complained") == []
        said = [item.content for item in handler.chat.conversation.items if isinstance(item, UserMessage)]
        assert said == ["one", "two"]


async def test_what_fails_of_the_users_own_counts_as_a_failure(tmp_path: Path) -> None:
    async with chatting(tmp_path) as (handler, _face):
        await handler.handle("/nonsense")
        assert handler.chat.failures == 1
        await handler.handle("!false")
        await handler.chat.wait_idle()
        assert handler.chat.failures == 2


async def test_what_is_to_be_approved_is_worked_out_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[threading.Thread]()

    def preview(*given: Any) -> tuple[str, None]:
        threads.append(threading.current_thread())
        return "all of it", None

    monkeypatch.setattr(session, "preview_of", preview)
    async with chatting(tmp_path, calls("shell", command="true"), "Ok.", answers=("yes",)) as (handler, face):
        await handler.handle("go")
        await handler.chat.wait_idle()
        assert face.asked[0].preview == "all of it"
        assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize("path", ["../outside.txt", "/etc/passwd", "link"])
async def test_the_file_tools_stay_in_the_folder(tmp_path: Path, path: str) -> None:
    async with chatting(tmp_path, calls("read_file", path=path), "Sorry.") as (handler, _face):
        (handler.chat.folder / "link").symlink_to("/etc/passwd")
        await handler.handle("read")
        await handler.chat.wait_idle()
        result = next(item for item in handler.chat.conversation.items if isinstance(item, ToolResult))
        assert result.outcome == "failed"
        assert "is not in" in result.output


async def test_many_presses_are_one_stop(tmp_path: Path) -> None:
    async with chatting(tmp_path, {"after": 3600}) as (handler, face):
        await handler.handle("go")
        await face.until(lambda: MODEL in handler.chat.running)
        for _ in range(10):
            handler.chat.stop()
        with anyio.fail_after(5):
            await handler.chat.wait_idle()
        assert len([line for line in face.all("said") if line.startswith("stopped ")]) == 1
