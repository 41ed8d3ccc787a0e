"""A tool in a process of its own: what it returns, raises and prints, how it is stopped, and that nothing of it is left."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.agents.agent.context import ToolContext
from quiesce.agents.agent.errors import UserError
from quiesce.agents.agent.tool import FunctionTool, function_tool
from quiesce.agents.agent.tool_process import RemoteToolError, ToolProcessError
from tests.agents import plain_functions
from tests.agents.plain_functions import undecorated
from tests.agents.process_tools import (
    Point,
    Tools,
    deaf,
    fail,
    leave_a_child,
    mirror,
    spin,
    talk,
)
from tests.kernel.processes import is_gone
from tests.world import World

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.worlds("asyncio"),
]  # most is the same everywhere; stops are not


@pytest.fixture(autouse=True)
def no_file_is_left() -> Iterator[None]:
    yield
    assert not list(Path(tempfile.gettempdir()).glob(f"quiesce-tool-{os.getpid()}-*"))


def context() -> ToolContext[Any]:
    return ToolContext(None)


# Returning


@pytest.mark.worlds("asyncio", "asyncio-eager", "uvloop", "trio")
async def test_a_function_is_called_in_another_process() -> None:
    assert mirror.isolation == "process"
    point, pid = await mirror.invoke(context(), '{"point": {"x": 1, "y": 2}, "by": 3}')
    assert point == Point(6, 3)
    assert pid != os.getpid()


async def test_functions_are_found_by_name_however_they_became_tools() -> None:
    assert await function_tool(undecorated, isolation="process").invoke(context(), '{"n": 1}') == 2
    assert await Tools.nested.invoke(context(), '{"n": 1}') == 3
    getpid = function_tool(os.getpid, isolation="process", name_override="getpid")
    assert await getpid.invoke(context(), "") != os.getpid()


async def test_what_it_prints_is_progress_and_breaks_nothing() -> None:
    ctx = context()
    assert await talk.invoke(ctx, '{"lines": 3000}') == ""  # nothing to read on its stdin
    lines = ctx.output_so_far.splitlines()
    assert lines[:2] == ["line 0", "line 1"]
    assert lines[2999:] == ["line 2999", "raw \N{REPLACEMENT CHARACTER} bytes", "from a child"]


def test_a_program_may_be_the_module_of_its_tools(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import dataclasses, anyio\n"
        "from quiesce.agents.agent.context import ToolContext\n"
        "from quiesce.agents.agent.tool import function_tool\n"
        "@dataclasses.dataclass\n"
        "class Point:\n    x: int\n"
        "@function_tool(isolation='process')\n"
        "def move(point: Point) -> Point:\n    return Point(point.x + 1)\n"
        "async def main():\n"
        '    assert await move.invoke(ToolContext(None), \'{"point": {"x": 1}}\') == Point(2)\n'
        "    print('moved')\n"
        "if __name__ == '__main__':\n    anyio.run(main)\n"
    )
    for command in ([str(program)], ["-m", "program"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False
        )
        assert (done.stdout, done.stderr) == ("moved\n", "")


def test_a_program_that_does_not_ask_whether_it_is_the_main_one_does_not_start_itself_for_ever(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import anyio\n"
        "from quiesce.agents.agent.context import ToolContext\n"
        "from quiesce.agents.agent.tool import function_tool\n"
        "@function_tool(isolation='process')\n"
        "def one() -> int:\n    return 1\n"
        "anyio.run(one.invoke, ToolContext(None), '')\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert "put what starts the program under `if __name__ == '__main__':`" in done.stderr


# Failing


async def test_an_exception_crosses_with_where_it_was_raised() -> None:
    with pytest.raises(LookupError, match="no such thing") as caught:
        await fail.invoke(context(), '{"how": "raise"}')
    (note,) = caught.value.__notes__
    assert note.startswith("In the process of tool 'fail':\nTraceback (most recent call last):")
    assert "process_tools.py" in note
    assert "tool_process_main.py" not in note


async def test_an_exception_that_cannot_cross_leaves_its_name_and_message() -> None:
    with pytest.raises(RemoteToolError, match=r"^Picky: 1 and 2\n"):
        await fail.invoke(context(), '{"how": "raise picky"}')


@pytest.mark.parametrize(
    ("how", "told", "status"),
    [
        ("exit", "exited with status 3", 3),
        ("exit at once", "exited with status 0", 0),
        ("signal", r"was ended by SIGSEGV \(signal 11\)", -11),
    ],
)
async def test_a_process_that_ends_too_early_is_an_error_that_says_how(
    how: str, told: str, status: int
) -> None:
    ctx = context()
    with pytest.raises(ToolProcessError, match=f"tool 'fail' has not returned: its process {told}") as caught:
        await fail.invoke(ctx, f'{{"how": "{how}"}}')
    assert caught.value.returncode == status
    assert caught.value.stderr == "to stderr\n"
    assert str(caught.value).endswith("the end of its stderr:\nto stderr")
    assert ctx.output_so_far == "to stdout\n"


async def test_a_result_that_cannot_cross_is_an_error_that_says_so() -> None:
    with pytest.raises(TypeError, match="tool 'fail' returned function, which cannot leave its process"):
        await fail.invoke(context(), '{"how": "return a function"}')


def local_function() -> Callable[..., Any]:
    def local(a: int) -> int:
        return a

    return local


class Thing:
    def method(self) -> None: ...


def takes_the_context(ctx: ToolContext[Any]) -> None: ...


@pytest.mark.parametrize(
    ("fn", "complaint"),
    [
        (lambda a: a, "a lambda has no name"),
        (local_function(), "was made inside another function"),
        (Thing().method, "is not a plain function"),
        (functools.partial(undecorated, 1), "is not a plain function"),
        (takes_the_context, "neither the run's context nor its token"),
    ],
)
def test_a_function_that_no_process_could_find_is_refused_at_once(
    fn: Callable[..., Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        function_tool(fn, isolation="process", name_override="tool")


async def test_a_function_whose_name_is_anothers_is_refused_when_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = function_tool(undecorated, isolation="process")
    monkeypatch.setattr(plain_functions, "undecorated", print)
    with pytest.raises(
        UserError, match=r"cannot find its function: .*undecorated is <built-in function print>"
    ):
        await tool.invoke(context(), '{"n": 1}')


# Stopping


async def wait_for_output(ctx: ToolContext[Any]) -> None:
    while "\n" not in ctx.output_so_far:
        await anyio.sleep(0.01)


async def stopped(
    tool: FunctionTool, ctx: ToolContext[Any], arguments: str, grace: Grace | None = None
) -> float:
    """Start it, stop it when it has printed a line, and tell how long the stop took."""
    async with Scope(grace=grace) as scope:
        scope.spawn(tool.invoke, ctx, arguments)
        await wait_for_output(ctx)
        began = time.monotonic()
        scope.cancel("enough")
    return time.monotonic() - began


@pytest.mark.worlds("asyncio", "asyncio-eager", "uvloop", "trio")
async def test_code_that_never_looks_is_stopped_and_may_clean_up(tmp_path: Path, world: World) -> None:
    ctx = context()
    assert await stopped(spin, ctx, f'{{"marker": "{tmp_path / "marker"}"}}') < 10
    assert (tmp_path / "marker").read_text() == "cleaned up"
    assert ctx.output_so_far == "spinning\ncleaned up\n"


@pytest.mark.worlds("asyncio", "trio")
async def test_code_that_is_deaf_is_killed_with_its_children() -> None:
    ctx = context()
    assert await stopped(deaf, ctx, "", Grace(cancel=0.2, terminate=0.2, kill=10)) < 10
    assert all(is_gone(int(pid)) for pid in ctx.output_so_far.split())


@pytest.mark.worlds("asyncio", "uvloop", "trio")
async def test_a_timeout_around_it_is_a_timeout() -> None:
    ctx = context()
    with pytest.raises(TimeoutError), anyio.fail_after(0.05):
        await spin.invoke(ctx, '{"marker": "/nowhere"}')


@pytest.mark.worlds("asyncio", "trio")
async def test_what_it_has_left_behind_is_ended_when_it_returns() -> None:
    began = time.monotonic()
    pid = await leave_a_child.invoke(context(), "")
    assert time.monotonic() - began < 10
    assert is_gone(pid)
