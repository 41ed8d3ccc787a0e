"""What the documentation shows is what happens.

Every ```python block of README.md and docs/ is a whole program. It runs unchanged, alone, as `example.py` in an
empty directory, with every warning shown, and must exit, with all its processes, within seconds. What it
prints must be in the ```text block that follows it immediately: nothing more, nothing less. `...` there stands for
anything, and measured seconds such as `0.003 s` may differ. A program that ends in a traceback has the traceback there.

`<!-- trio too -->` before a block says that it also runs on trio, where it prints the same.

A block of nothing but includes (`--8<--`) shows a part of a file that is run elsewhere, and is not run here; file and part
must exist.

Code that is not a program has another fence. CONTRIBUTING.md, which docs/contributing.md includes, shows a test; that is
not a program either.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCES = {"python", "text", "console", ""}
TRIO_TOO = "<!-- trio too -->"
INCLUDE = re.compile(r'--8<-- "([^":]+)(?::([\w-]+))?"')
RUN, RUN_ON_TRIO = "anyio.run(main)", 'anyio.run(main, backend="trio")'
LONGEST = 20.0  # seconds for a program, on a busy machine
GONE_WITHIN = 5.0  # seconds for its processes to exit after it: the guard has to notice first


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    before: str  # the text between it and the block before

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Program:
    """A python block, and its output according to the page."""

    block: Block
    prints: str
    on_trio: bool = False

    @property
    def source(self) -> str:
        return self.block.text.replace(RUN, RUN_ON_TRIO) if self.on_trio else self.block.text

    @property
    def id(self) -> str:
        return f"{self.block.place}, trio" if self.on_trio else self.block.place


def blocks_of(page: Path) -> Iterator[Block]:
    language: str | None = None
    start, inside, between = 0, [""], [""]
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.match(r"(\s*)(`{3,}|~{3,})\s*(.*)", line)
        if fence is None:
            (inside if language is not None else between).append(line)
        elif language is None:
            indent, ticks, language = fence.groups()
            assert (indent, ticks, language in FENCES) == ("", "```", True), (
                f"{page.relative_to(ROOT)}:{number}: a fence must be one of ```{', ```'.join(sorted(FENCES))}, "
                f"at the beginning of its line, so that its block is not overlooked"
            )
            start, inside = number, []
        else:
            yield Block(page, start, language, "\n".join(inside) + "\n", "\n".join(between).strip())
            language, between = None, []
    assert language is None, f"{page.relative_to(ROOT)}:{start}: the block has no end"


def programs() -> Iterator[Program]:
    for page in PAGES:
        for block, following in pairwise([*blocks_of(page), None]):
            if block is None or block.language != "python" or is_included(block):
                continue
            printed = following is not None and following.language == "text" and not following.before
            prints = following.text if following is not None and printed else ""
            yield Program(block, prints)
            if block.before.endswith(TRIO_TOO):
                yield Program(block, prints, on_trio=True)


def is_included(block: Block) -> bool:
    return all(INCLUDE.fullmatch(line) for line in block.text.splitlines())


PROGRAMS = list(programs())


@pytest.mark.documentation
@pytest.mark.time_limit(60)
@pytest.mark.parametrize("program", PROGRAMS, ids=[program.id for program in PROGRAMS])
def test_a_program_in_the_documentation_prints_what_the_page_says(program: Program, tmp_path: Path) -> None:
    if program.on_trio:
        assert program.block.text.count(RUN) == 1, f"to run on trio too, it must call `{RUN}` once"
    mark = uuid.uuid4().hex
    output, status = run(program.source, tmp_path, mark)
    left = wait_until_gone(mark)
    assert matches(program.prints, output), f"{program.id} printed\n{output}\nand not\n{program.prints}"
    assert (status != 0) == ("Traceback (most recent call last):" in program.prints), f"exit status {status}"
    assert not left, f"{program.id} left processes behind: {left}"


def run(source: str, directory: Path, mark: str) -> tuple[str, int]:
    (directory / "example.py").write_text(source)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "QUIESCE_TEST_MARK": mark}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of the programs would compile the kernel
    done = subprocess.run(
        [sys.executable, "-W", "default", "example.py"],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    return done.stdout, done.returncode


def wait_until_gone(mark: str) -> list[int]:
    """Wait for the processes of a program that has exited; kill those that are left over, and return their pids."""
    give_up_at = time.monotonic() + GONE_WITHIN
    while (pids := marked(mark)) and time.monotonic() < give_up_at:
        time.sleep(0.02)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


def marked(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has exited, or belongs to another user
            continue
    return found


def matches(expected: str, printed: str) -> bool:
    parts = (re.escape(part) for part in same_seconds(expected.rstrip()).split("..."))
    return re.fullmatch(".*".join(parts), same_seconds(printed.rstrip()), re.DOTALL) is not None


def same_seconds(text: str) -> str:
    return re.sub(r"\b\d+\.\d{3} s\b|(?<=over )\d+\.\d s\b", "0.000 s", text)


def test_there_are_programs_on_every_page_of_a_word() -> None:
    with_programs = {program.block.page for program in PROGRAMS}
    words = set((ROOT / "docs" / "words").glob("*.md")) - {ROOT / "docs" / "words" / "index.md"}
    assert words
    assert words <= with_programs


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_an_output_stands_right_after_the_program_that_prints_it(page: Path) -> None:
    before: Block | None = None
    for block in blocks_of(page):
        if block.language == "text":
            assert before is not None, block.place
            assert before.language == "python", block.place
            assert not block.before, (
                f"{block.place}: between a program and its output stands {block.before!r}"
            )
        before = block


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_what_a_page_includes_is_there(page: Path) -> None:
    for name, part in INCLUDE.findall(page.read_text()):
        text = (ROOT / name).read_text()
        for end in ("start", "end"):
            assert not part or text.count(f"# --8<-- [{end}:{part}]\n") == 1, f"{name}: {end} of {part}"


def test_every_public_name_is_explained_on_one_page() -> None:
    describe_error = re.compile(r"^::: quiesce\.(\w+)$", re.MULTILINE)
    names = [name for page in PAGES for name in describe_error.findall(page.read_text())]
    assert sorted(names) == importlib.import_module("quiesce").__all__


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text())
    local = [link for link in links if "://" not in link]
    assert local
    assert [link for link in local if not (ROOT / link).exists()] == []


def test_every_test_that_the_documentation_names_exists() -> None:
    named = {
        (page, match) for page in PAGES for match in re.findall(r"`(test_\w+)(?:\.py)?`", page.read_text())
    }
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    functions = {
        name
        for text in tests.values()
        for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)
    }
    known = functions | {path.stem for path in tests}
    assert named
    assert sorted(f"{page.name}: {name}" for page, name in named if name not in known) == []


def test_every_module_that_a_decision_names_exists() -> None:
    pages = (ROOT / "docs" / "decisions").glob("*.md")
    named = {
        (page, match)
        for page in pages
        for match in re.findall(r"`((?:kernel|audit|agents|wire)/[\w/.]+)`", page.read_text())
    }
    assert len(named) > 10
    assert [name for _, name in named if not (ROOT / "src" / "quiesce" / name).exists()] == []


def test_what_may_differ_in_an_output_and_what_may_not() -> None:
    assert matches("stopped in 0.123 s: 1 cancelled\n", "stopped in 4.567 s: 1 cancelled\n")
    assert matches("Traceback:\n  ...\nKeyError: 1\n", "Traceback:\n  File 1\n    x\nKeyError: 1\n")
    assert not matches("one line\n", "one line\nand another\n")
    assert not matches("", "something\n")
    assert not matches("1 cancelled", "2 cancelled")
