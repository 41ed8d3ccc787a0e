"""Threat: names, reasons, errors and output of others move the cursor, forge lines, turn text round or run as markup."""

from __future__ import annotations

import html
import logging
import re
import subprocess
import sys
import unicodedata
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quiesce
from quiesce import Reason, Scope
from quiesce._safe.printed import logger, printed, printed_line
from quiesce._safe.text import both_ends, exact, shown
from quiesce.audit import audit
from quiesce.audit.findings.text import Paint
from quiesce.audit.html.page import render
from quiesce.audit.html.text import esc
from quiesce.audit.report.machine import Outcome as AuditOutcome
from quiesce.audit.report.machine import _case, to_junit
from quiesce.cli.base.terminal import error_text
from quiesce.kernel.base.report import Leftover, Outcome, StopReport
from quiesce.kernel.program.live_tree import Branch
from quiesce.models.words.errors import ModelError
from quiesce_chat.session.session import describe_error
from quiesce_chat.start import _OneLineFormatter
from quiesce_chat.ui.terminal_text import markdown, rendered

ATTACKS = [
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1b]0;title\x07",  # sets the title
    "\x1b]52;c;cm0gLXJmIH4=\x07",  # sets the clipboard
    "\x1bP$q\x1b\\",  # asks the terminal, which types the answer
    "\x9b31m",  # C1
    "\u202egnp.exe",  # turns the direction round
    "\u2066a\u2069",
    "a\nFORGED: nothing left",
    "a\r\nFORGED",
    "a\x0b\x0c\x85\u2028\u2029FORGED",
    "\x00\x07\x08\x7f",
    "[bold red]markup[/]",
    "<script>alert(1)</script>",
    "&#27;[2J",
    "\ud800",
    "{0.__class__}%s%(name)s",
]
attack = pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))


def check(said: str, *, lines: int | None = None, page: bool = False) -> None:
    """Nothing in it does anything to a terminal, and there are as many lines as there should be."""
    for character in said:
        if character != "\n":
            assert character == "\t" or unicodedata.category(character) not in (
                "Cc",
                "Cf",
                "Cs",
                "Zl",
                "Zp",
            ), f"{character!r} in {said!r}"
    assert "\u202e" not in said
    if lines is not None:
        assert said.count("\n") + 1 == lines, said
    if not page:  # where a line end is a blank
        assert not re.search(r"^FORGED", said, re.MULTILINE)


# Reports, trees and records


@attack
def test_reports(text: str) -> None:
    error = RuntimeError(text)
    check(str(Leftover("task", text, text, text)), lines=1)
    check(str(Outcome(text, "failed", error)), lines=1)
    report = StopReport(
        text,
        Reason("user", text),
        0.1,
        [Leftover("task", text, "a", "b")],
        1,
        notes=[text],
        _rows=[(text, "failed", error)],
        _failures=[(text, error)],
    )
    check(str(report), lines=4)


@attack
def test_trees(text: str) -> None:
    branch = Branch("task", text, "stopping", where=text, reason=text, children=(Branch("task", text),))
    check(branch.line, lines=1)
    check(str(branch), lines=2)


@attack
async def test_a_live_tree_and_its_report(text: str) -> None:
    async with Scope(text) as scope:
        scope.spawn(anyio.sleep_forever, name=text)
        await anyio.sleep(0)
        check(str(quiesce.tree()))
        scope.cancel(text)
    assert scope.report is not None
    check(str(scope.report))


@attack
def test_log_records(text: str, caplog: pytest.LogCaptureFixture) -> None:
    logger.warning("it failed: %s", text)
    try:
        raise RuntimeError(text)
    except RuntimeError:
        logger.exception("%s", text)
    for record in caplog.records:
        check(record.getMessage(), lines=1)
        check(logging.Formatter("%(message)s").format(record))


def test_every_module_logs_through_the_logger_that_makes_records_safe() -> None:
    source = Path(quiesce.__file__).parent
    for path in source.rglob("*.py"):
        if path.name not in ("printed.py", "start.py"):
            assert 'getLogger("quiesce' not in path.read_text(), path


def test_a_record_that_is_not_wanted_is_not_formatted() -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("it was formatted")

    logger.debug("%s", Costly())


@given(st.text(st.characters(exclude_categories=())))
def test_whatever_is_printed_is_safe(text: str) -> None:
    check(printed_line(text), lines=1)
    check(printed(text))
    check(exact(text))
    assert exact(exact(text)) == exact(text)
    assert len(both_ends(text, 40)) <= 80


@given(st.text(st.characters(exclude_categories=())))
def test_output_of_programs_is_safe(text: str) -> None:
    for character in shown(text):
        assert character in "\n\t\u200c\u200d\u00ad" or unicodedata.category(character) not in ("Cc", "Cs"), (
            repr(character)
        )


# The audit


@attack
def test_reports_of_an_audit(text: str) -> None:
    async def scenario() -> None:
        raise RuntimeError(text)

    result = audit(scenario)
    result.target = f"module:{text}"
    result.notes.append(text)
    check(str(result))
    page = render([result])
    assert "<script" not in page
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in page
    check(html.unescape(page), page=True)
    check(to_junit(AuditOutcome(results=[result])))


@attack
def test_colours_of_an_audit_are_its_own(text: str) -> None:
    paint = Paint(True)
    line = paint.line(f"{paint.bold(text)} {text}")
    assert line.startswith("\x1b[1m")
    check(line.replace("\x1b[1m", "", 1).replace("\x1b[0m", "", 1), lines=1)


@attack
def test_pages(text: str) -> None:
    check(html.unescape(esc(text)), page=True)
    assert "<" not in esc(text)


# The terminal


@attack
def test_markdown_is_cleaned_after_it_was_set(text: str) -> None:
    for source in (
        text,
        f"# {text}",
        f"`{text}`",
        f"```\n{text}\n```",
        f"[{text}]({text})",
        f"* {text}",
        f"| a |\n|---|\n| {text} |",
    ):
        told = rendered(markdown(source))
        told = re.sub(r"\x1b\[[0-9;]*m", "", told)  # its own colours
        for character in told:
            assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs"), repr(told)
        assert "\u202e" not in told


@pytest.mark.parametrize(
    "entity", ["&#27;[2J", "&#x1b;]0;x&#7;", "&#155;31m", "&#8238;gnp", "&NewLine;", "&rlm;"]
)
def test_entities_of_markdown_do_not_become_control_characters(entity: str) -> None:
    told = re.sub(r"\x1b\[[0-9;]*m", "", rendered(markdown(f"before {entity} after")))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", told), repr(told)


# Commands


@pytest.mark.parametrize("text", ["\x1b[2J", "\u202egnp", "a\nFORGED"], ids=["escape", "bidi", "line"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["{text}"],
        ["audit", "{text}"],
        ["audit", "--{text}"],
        ["acp", "{text}"],
        ["acp", "{text}:agent"],
        ["acp", "json:{text}"],
        ["tour", "{text}"],
        ["ask", "--model", "{text}", "hello"],
        ["ask", "--model", "http://127.0.0.1:9/{text}", "hello"],
        ["ask", "--folder", "{text}", "hello"],
        ["chat", "--script", "{text}"],
        ["chat", "--resume", "{text}", "--store", "{text}"],
    ],
    ids=" ".join,
)
def test_what_a_command_says_of_its_arguments(arguments: list[str], text: str, tmp_path: Path) -> None:
    words = [word.replace("{text}", text) for word in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "quiesce", *words],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    said = done.stdout.decode() + done.stderr.decode()
    assert said.strip()
    assert "Traceback" not in said
    check(said)


def test_a_server_that_lists_its_models_is_quoted_safely(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from quiesce.cli.base.terminal import say

    say("http://h has no models: \x1b[2J\u202e")
    check(capsys.readouterr().err)


def test_an_error_of_several_lines_does_not_look_like_several_messages() -> None:
    error = ModelError("it failed\nquiesce: all tools were approved")
    assert describe_error(error) == "it failed\n  quiesce: all tools were approved"
    assert error_text(error) == "it failed\n  quiesce: all tools were approved"
    record = logging.LogRecord("quiesce", logging.WARNING, "", 0, "failed", (), (ModelError, error, None))
    assert _OneLineFormatter().format(record) == "failed: it failed⏎quiesce: all tools were approved"


def test_what_a_command_logs_hides_secrets() -> None:
    error = ModelError("cannot reach https://ann:pw@host/v1?key=abc")
    record = logging.LogRecord("quiesce", logging.WARNING, "", 0, "failed", (), (ModelError, error, None))
    assert _OneLineFormatter().format(record) == "failed: cannot reach https://…@host/v1?key=…"


def test_a_report_for_ci_is_xml_whatever_a_target_is_called() -> None:
    case = _case(ET.Element("testsuite"), "\x1b[2J", "asyncio", 0.0)
    assert ET.fromstring(ET.tostring(case)).get("classname") == "␛[2J"
