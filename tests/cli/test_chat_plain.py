"""`quiesce chat` in plain lines, as a real process."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from quiesce_chat.session.face import READING_TIME

from .chat_parts import calls, write_script
from .chat_programs import SIGINT, SIGTERM, Here, at_terminal, processes_with, run, started

pytestmark = pytest.mark.time_limit(60)


def test_prompts_come_one_a_line_and_answers_go_to_standard_output_alone(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", "One.", calls("list_files"), "Two.")
    (tmp_path / "file.txt").touch()
    done = run(
        tmp_path, "chat", "--script", script, "--folder", str(tmp_path), typed="hello\nlook\n!echo mine\n"
    )
    assert done.code == 0
    assert done.out == "One.\nTwo.\nmine\n"
    assert "· list_files" in done.err


def test_nobody_can_be_asked_in_a_pipe_so_a_call_is_not_allowed_unless_told_to(
    here: Here, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    turns = (calls("shell", command="touch made"), "Over.")
    script = write_script(tmp_path / "s.json", *turns)
    done = here.run("chat", "--script", script, "--folder", str(tmp_path), typed="go\n")
    assert (done.code, done.out) == (0, "Over.\n")
    assert "not allowed: shell touch" in done.err
    assert not made.exists()
    done = here.run("chat", "--script", script, "--folder", str(tmp_path), "--yes", typed="go\n")
    assert (done.code, done.out) == (0, "Over.\n")
    assert made.exists()


def test_a_model_that_fails_is_told_on_standard_error_and_by_the_exit_status(
    here: Here, tmp_path: Path
) -> None:
    script = write_script(tmp_path / "s.json", {"error": "no credit left"}, "Here.")
    done = here.run("chat", "--script", script, typed="one\ntwo\n")
    assert (done.code, done.out) == (1, "Here.\n")
    assert "quiesce: no credit left" in done.err


@pytest.mark.parametrize("typed", ["/nonsense\n", "!false\n", "!no-such-command-36104\n"])
def test_a_line_that_fails_is_told_by_the_exit_status(here: Here, tmp_path: Path, typed: str) -> None:
    script = write_script(tmp_path / "s.json", "Yes.")
    done = here.run("chat", "--script", script, typed=f"{typed}and on\n")
    assert (done.code, done.out[-5:]) == (1, "Yes.\n")


def test_when_nobody_reads_the_answers_the_work_stops(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", {"pieces": ["I am ", *["still "] * 10_000], "delay": 0.01})
    with started(tmp_path, "chat", "--script", script) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        assert process.stdout.read(4) == b"I am"
        process.stdout.close()
        assert process.wait(20) == 1
        assert process.stderr.read() == b""


def test_without_a_home_a_line_says_what_to_do(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    script = write_script(tmp_path / "s.json", "Yes.")
    monkeypatch.setattr(Path, "home", homeless)
    assert here.run("chat", "--script", script, typed="hello\n").code == 0  # there is XDG_DATA_HOME
    monkeypatch.delenv("XDG_DATA_HOME")
    done = here.run("chat", "--list")
    assert done.code == 1
    assert done.err.startswith("quiesce chat: cannot store conversations")
    assert "--store FILE" in done.err
    assert here.run("chat", "--script", script, "--store", "none", typed="hello\n").out == "Yes.\n"
    done = here.run("chat", "--folder", "~no-such-user-36105/x")
    assert done.code == 2
    assert "--folder '~no-such-user-36105/x' cannot be found" in done.err


def test_bytes_that_are_no_utf_8_and_escape_sequences_do_no_harm(here: Here, tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", "\x1b]0;title\x07plain \x1b[31mred\u202e", "Ok.")
    done = here.run("chat", "--script", script, typed=b"caf\xe9 \xff\n\xfe\n")
    assert done.code == 0
    assert done.out == "plain red\\u202e\nOk.\n"
    assert "2 bytes that are not UTF-8 were replaced" in done.err


def test_what_was_said_is_kept_listed_and_gone_on_with(here: Here, tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", "One.")
    assert here.run("chat", "--script", script, typed="my first words\n").code == 0
    (kept,) = json.loads(here.run("chat", "--list", "--json").out)
    assert (kept["begins"], kept["messages"]) == ("my first words", 1)
    assert (tmp_path / "data" / "quiesce" / "chat.db").stat().st_size > 0
    assert (tmp_path / "data" / "quiesce").stat().st_mode & 0o077 == 0
    done = run(
        tmp_path,
        "chat",
        "--script",
        script,
        "--resume",
        kept["id"][:10],
        typed="/history\nand on\n/history\n",
    )
    assert done.code == 0
    assert done.err.count("› my first words") == 2
    assert "› and on" in done.err
    listed = here.run("chat", "--list").out
    assert listed.startswith(kept["id"])
    assert "2 messages" in listed


def test_an_interrupt_stops_the_program_with_130_and_names_what_it_stopped(
    here: Here, tmp_path: Path
) -> None:
    script = write_script(tmp_path / "s.json", calls("shell", command="echo begun; sleep 36101"))
    with started(tmp_path, "chat", "--script", script, "--yes") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert b"shell echo begun" in process.stderr.readline()
        _wait_for(lambda: bool(_now_with("sleep 36101")))
        process.send_signal(SIGINT)
        told = process.stderr.read().decode()
        assert process.wait(20) == 130
    assert "stopped shell echo begun; sleep 36101 in" in told
    assert "nothing left" in told
    assert processes_with("sleep 36101") == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--resume",), "no conversation is stored yet"),
        (("--folder", "/no/such"), "is not a folder"),
        (("--script", "/no/such.json"), "cannot be read"),
        (("--json",), "needs --list"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_line(here: Here, words: tuple[str, ...], says: str) -> None:
    done = here.run("chat", *words)
    assert done.code in (1, 2)
    assert done.out == ""
    assert done.err.startswith("quiesce chat: ")
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_terminal_that_does_lines_alone_can_be_talked_at_and_interrupted(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", calls("shell", command="echo begun; sleep 36102"), "Again.")
    with at_terminal(tmp_path, "chat", "--script", script, TERM="dumb") as program:
        program.until("Nothing is sandboxed")
        program.type("go\n")
        program.until("[a]lways for this session")
        program.type("y\n")
        program.until("begun", times=3)  # the call, the question, and what it has printed
        program.type("\x03")
        program.until("scripted ›", times=2)
        assert "nothing left" in program.text
        assert processes_with("sleep 36102") == []
        program.type("and now?\n")
        program.until("Again.")
        program.until("scripted ›", times=3)
        time.sleep(READING_TIME)  # from here on it is not meant for the answer
        program.type("\x03")
        assert program.ended() == 0
    assert "\x1b" not in program.seen.decode()


def test_a_word_that_is_no_answer_means_no_and_is_the_next_message(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", calls("shell", command="echo never"), "As you like.")
    with at_terminal(tmp_path, "chat", "--script", script, TERM="dumb") as program:
        program.until("Nothing is sandboxed")
        program.type("go\n")
        program.until("[a]lways for this session")
        program.type("use ls instead\n")
        program.until("As you like.")
        program.type("/history\n")
        program.until("› use ls instead")
        program.type("/quit\n")
        assert program.ended() == 0
    assert "not allowed" in program.text


def test_sigterm_ends_it_with_143_and_leaves_nothing(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", calls("shell", command="echo begun; sleep 36103"))
    with started(tmp_path, "chat", "--script", script, "--yes") as process:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        _wait_for(lambda: bool(_now_with("sleep 36103")))
        process.send_signal(SIGTERM)
        assert process.wait(20) == 143
    assert processes_with("sleep 36103") == []


def _now_with(words: str) -> list[int]:
    from .chat_programs import _command, _pids

    return [pid for pid in _pids() if _command(pid).strip() == words]


def _wait_for(holds: object) -> None:
    import time

    ends = time.monotonic() + 20
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_an_answer_begins_on_a_line_of_its_own(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", "One.")
    done = run(tmp_path, "chat", "--script", script, typed="!printf abc\nhello\n")
    assert done.out == "abc\nOne.\n"


def test_a_store_of_ones_own_is_part_of_what_to_say_to_go_on(here: Here, tmp_path: Path) -> None:
    store = str(tmp_path / "my store.db")
    script = write_script(tmp_path / "s.json", "One.")
    assert here.run("chat", "--script", script, "--store", store, typed="hello\n").code == 0
    said = here.run("chat", "--script", script, "--store", store, "--resume", "nonesuch").err
    assert f"`quiesce chat --store '{store}' --list` lists them all" in said
