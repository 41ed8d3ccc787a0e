"""`quiesce ask`: one question, one answer, as a real process."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from quiesce import Scope
from quiesce.agents import SQLiteStore
from quiesce_chat.ask import _answer_questions
from quiesce_chat.session import store_choice
from quiesce_chat.session.face import Approval, Call
from quiesce_chat.start import can_ask_user
from quiesce_chat.ui import plain_face
from quiesce_chat.ui.input_lines import InputLines
from quiesce_chat.ui.plain_face import PlainFace

from .chat_parts import calls, write_script
from .chat_programs import LONGEST, SIGINT, Here, at_terminal, environment, processes_with, run, started

pytestmark = pytest.mark.time_limit(60)


def test_the_answer_is_all_that_goes_to_standard_output(here: Here, tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", calls("list_files"), "An **answer**.")
    done = here.run("ask", "--script", script, "what?")
    assert (done.code, done.out) == (0, "An **answer**.\n")
    assert not (tmp_path / "data").exists()  # nothing is kept of a question unless told to


def test_a_prompt_from_standard_input_and_an_answer_for_a_machine(here: Here, tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", calls("shell", command="echo 1"), "Refused.")
    store = str(tmp_path / "kept.db")
    done = here.run("ask", "--script", script, "-", "--json", "--store", store, typed="two\nlines\n")
    assert done.code == 0
    said = json.loads(done.out)
    assert (said["answer"], said["status"], said["model"]) == ("Refused.", "finished", "scripted")
    assert said["error"] is None
    assert [(tool["name"], tool["outcome"]) for tool in said["tools"]] == [("shell", "rejected")]
    listed = json.loads(here.run("chat", "--list", "--json", "--store", store).out)
    assert [one["id"] for one in listed] == [said["conversation"]]


def test_a_failure_is_a_line_and_an_exit_status(here: Here, tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", {"error": "no credit left"})
    done = here.run("ask", "--script", script, "what?")
    assert (done.code, done.out, done.err) == (1, "", "quiesce: no credit left\n")
    done = here.run("ask", "--json", "--script", script, "what?")
    said = json.loads(done.out)
    assert (done.code, said["status"], said["error"]) == (1, "error", "no credit left")
    done = here.run("ask", "--script", script, " ")
    assert (done.code, done.out) == (2, "")
    assert "the prompt is empty" in done.err


@pytest.mark.parametrize(("words", "typed"), [(("ask", "what?"), ""), (("chat",), "what?\n")])
def test_without_a_language_model_nobody_pretends_to_have_answered(
    words: tuple[str, ...], typed: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # without the weights of the embedded one
    done = here.run(*words, typed=typed)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"quiesce {words[0]}: no language model is available: no key is set, and ")
    assert "--model http://" in done.err
    done = here.run(*words, "--model", "scripted", typed=typed)  # it was asked for
    assert done.code == 0
    assert "I am a script" in done.out


def test_a_prompt_goes_before_what_comes_from_standard_input(here: Here, tmp_path: Path) -> None:
    script, store = write_script(tmp_path / "s.json", "Yes."), str(tmp_path / "kept.db")
    done = here.run("ask", "is it sound?", "--script", script, "--store", store, "-", typed="-a\n+b\n")
    assert (done.code, done.err) == (0, "")
    (kept,) = json.loads(here.run("chat", "--list", "--json", "--store", store).out)
    assert kept["begins"] == "is it sound? -a +b"


def test_standard_input_that_is_not_read_is_spoken_of(here: Here, tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", "Yes.")
    done = here.run("ask", "is it sound?", "--script", script, typed="-a\n+b\n")
    assert (done.code, done.out) == (0, "Yes.\n")
    assert "standard input is ignored" in done.err
    assert here.run("ask", "is it sound?", "--script", script).err == ""


def test_a_prompt_after_resume_is_the_prompt_and_an_id_is_none(here: Here, tmp_path: Path) -> None:
    script, store = write_script(tmp_path / "s.json", "Yes."), ("--store", str(tmp_path / "kept.db"))
    assert here.run("ask", "one two", "--script", script, *store).code == 0
    assert here.run("ask", "--script", script, *store, "--resume", "three four").code == 0
    (kept,) = json.loads(here.run("chat", "--list", "--json", *store).out)
    assert kept["messages"] == 2
    done = here.run("ask", "--script", script, *store, "--resume", kept["id"])
    assert done.code == 2
    assert f'no prompt given. Usage: quiesce ask "your question" --resume {kept["id"]}' in done.err
    done = here.run("ask", "one", "two", "--script", script)
    assert done.code == 2
    assert "more than one prompt given: 'two' comes after 'one'" in done.err


def test_only_who_can_read_a_question_and_answer_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with open(theirs, closefd=False) as typed, open(theirs, "w") as seen, open(os.devnull, "w") as unseen:
        for stdin, stderr, asked in (
            (typed, seen, True),
            (typed, unseen, False),
            (unseen, seen, False),
            (typed, None, False),
        ):
            monkeypatch.setattr(sys, "stdin", stdin)
            monkeypatch.setattr(sys, "stderr", stderr)
            assert can_ask_user() is asked
    os.close(ours)


@pytest.mark.worlds("asyncio")
@pytest.mark.real_time
async def test_standard_input_is_read_only_while_there_is_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lines(InputLines):
        read = 0

        async def line(self) -> str | None:
            self.read += 1
            return "y"

    monkeypatch.setattr(plain_face, "READING_TIME", 0.0)
    face, lines = PlainFace(can_ask=True), Lines(None)
    async with Scope("ask") as scope:
        scope.spawn(_answer_questions, face, lines)
        await asyncio.sleep(0.05)
        assert lines.read == 0
        for times in (1, 2):
            assert await face.ask(Approval(Call("1", "shell", "ls"), "ls")) == "yes"
            assert lines.read == times
        await asyncio.sleep(0.05)
        assert lines.read == 2
        scope.cancel()


def test_when_nobody_reads_the_answer_the_work_stops(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", {"pieces": ["I am ", *["still "] * 10_000], "delay": 0.01})
    with started(tmp_path, "ask", "--script", script, "go") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(4) == b"I am"
        process.stdout.close()
        assert process.wait(20) == 1
        assert process.stderr.read() == b""


def test_a_person_at_a_terminal_is_asked(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", calls("shell", command="echo hello from sh"), "Done so.")
    with at_terminal(tmp_path, "ask", "--script", script, "go") as program:
        program.until("[a]lways for this session")
        program.type("y\n")
        program.until("Done so.")
        assert program.ended() == 0


def test_an_interrupt_ends_it_with_130(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", {"pieces": ["I am ", *["still "] * 1000], "delay": 0.05})
    with at_terminal(tmp_path, "ask", "--script", script, "go") as program:
        program.until("I am still")
        program.type("\x03")
        assert program.ended() == 130
    assert "nothing left" in program.text


def test_an_interrupt_leaves_json_of_how_far_it_came(tmp_path: Path) -> None:
    script = write_script(
        tmp_path / "s.json", calls("list_files"), calls("shell", command="sleep 4762"), "never"
    )
    with started(tmp_path, "ask", "--json", "--yes", "--script", script, "go") as process:
        assert process.stderr is not None
        assert process.stdout is not None
        while b"shell sleep 4762" not in process.stderr.readline():
            pass
        process.send_signal(SIGINT)
        said = json.loads(process.stdout.read())
        assert process.wait(LONGEST) == 130
    assert (said["status"], said["error"], said["answer"]) == ("interrupted", None, None)
    assert [tool["outcome"] for tool in said["tools"]][:1] == ["finished"]
    assert [tool["name"] for tool in said["tools"]] == ["list_files", "shell"]
    assert processes_with("sleep 4762") == []


def test_a_command_that_says_much_and_is_ended_for_its_time_gives_the_beginning_and_the_end(
    here: Here, tmp_path: Path
) -> None:
    script = write_script(tmp_path / "s.json", calls("shell", command="yes hello", seconds=2), "Enough.")
    done = here.run("ask", "--json", "--yes", "--script", script, "go")
    assert done.code == 0
    (tool,) = json.loads(done.out)["tools"]
    assert "Stopped after 2 s, because it had not ended by itself" in tool["output"]
    assert "characters left out" in tool["output"]
    assert len(tool["output"]) < 33_000


# What a script may meet


def test_after_two_dashes_nothing_is_an_option(here: Here, tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", calls("shell", command="echo no"), "Refused.")
    done = here.run("ask", "--script", script, "--json", "--", "--yes", "-", typed="and this")
    assert [tool["outcome"] for tool in json.loads(done.out)["tools"]] == ["rejected"]
    done = here.run("ask", "--script", write_script(tmp_path / "t.json", "Hm."), "--", "-x")
    assert (done.code, done.out) == (0, "Hm.\n")


@pytest.mark.parametrize("words", [["two"], ["two", "--resume"]])
def test_a_store_that_fails_is_a_line_and_json_says_so(
    words: list[str], here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_choice, "SQLiteStore", partial(SQLiteStore, busy_timeout=0.05))
    script, store = write_script(tmp_path / "s.json", "Yes.", "Never."), str(tmp_path / "kept.db")
    assert here.run("ask", "--script", script, "--store", store, "one").code == 0
    with closing(sqlite3.connect(store, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        done = here.run("ask", *words, "--json", "--script", script, "--store", store)
    said = json.loads(done.out)
    assert (done.code, said["status"], said["answer"]) == (1, "error", None)
    assert "locked" in said["error"]
    assert "Traceback" not in done.err
    assert all("locked" in line for line in done.err.splitlines())


def test_json_is_printed_though_no_chat_was_begun(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    done = here.run("ask", "--json", "--model", "openai:some", "what?")
    said = json.loads(done.out)
    assert (done.code, said["status"], said["answer"], said["tools"]) == (1, "error", None, [])
    assert "OPENAI_API_KEY" in said["error"]
    assert (
        said.keys()
        == json.loads(
            here.run("ask", "--json", "--script", write_script(tmp_path / "s.json", "Yes."), "what?").out
        ).keys()
    )


def test_json_is_written_in_letters_that_the_stream_has(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", "caf\xe9")
    done = run(tmp_path, "ask", "--json", "--script", script, "what?", PYTHONIOENCODING="ascii")
    assert (done.code, json.loads(done.out)["answer"]) == (0, "caf\xe9")
    assert "caf\\u00e9" in done.out


@pytest.mark.parametrize("to", ["2>&-", "2>/dev/full", "2> >(true)"])
def test_the_answer_comes_though_nobody_takes_what_else_is_said(to: str, tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", *[calls("list_files")] * 20, "An answer.")
    line = f'exec "$0" -m quiesce ask --json --script "$1" what {to}'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, script],
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["answer"] == "An answer."
