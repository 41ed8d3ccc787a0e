"""From the words on the command line to scenarios."""

from __future__ import annotations

import sys

import pytest

from quiesce.audit.command.collect import BadTarget, collect, find_function
from tests.audit.command_line import CommandLine

PLAIN = "async def scenario(): pass\n"


def targets(*words: str) -> list[str]:
    found, bad = collect(words)
    assert bad == []
    return [each.target for each in found]


def test_every_way_to_name_a_scenario_in_a_file_finds_the_same(command: CommandLine) -> None:
    path = command.write("ways/one.py", PLAIN)
    ways = [
        "ways/one.py:scenario",
        "ways/one.py::scenario",
        "./ways/one.py",
        "ways/../ways/one.py",
        str(path),
        "ways",
    ]
    assert [targets(way) for way in ways] == [["ways/one.py:scenario"]] * len(ways)
    assert targets(*ways) == ["ways/one.py:scenario"]


def test_a_module_can_be_named_with_and_without_a_scenario(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(command.folder)
    command.write("pack_a/__init__.py", "")
    command.write("pack_a/jobs.py", "async def scenario_x(): pass\nasync def other(): pass\n")
    assert targets("pack_a.jobs") == ["pack_a.jobs:scenario_x"]
    assert targets("pack_a.jobs:other") == ["pack_a.jobs:other"]


def test_in_a_file_scenarios_are_the_marked_and_the_named_ones_in_their_order(command: CommandLine) -> None:
    source = """
        import asyncio
        import functools
        from contextlib import asynccontextmanager

        from quiesce.audit import scenario

        scenario_limit = 5

        async def scenario_zebra(): pass
        async def helper(): pass

        @scenario(stops="cancel", depth=2)
        async def ape(): pass

        @scenario
        async def bear(): pass

        @asynccontextmanager
        async def scenario_held():
            yield

        scenario_bound = functools.partial(asyncio.sleep, 1)
    """
    command.write("zoo.py", source)
    found, bad = collect(["zoo.py"])
    assert bad == []
    names = [each.target.partition(":")[2] for each in found]
    assert names == ["scenario_zebra", "ape", "bear", "scenario_held", "scenario_bound"]
    assert found[1].options == {"stops": "cancel", "depth": 2}
    assert found[2].options == {}


def test_what_a_file_imports_is_not_its_own(command: CommandLine) -> None:
    command.write("here/mine.py", PLAIN)
    command.write("here/yours.py", "from mine import scenario\nasync def scenario_of_yours(): pass\n")
    assert targets("here/yours.py") == ["here/yours.py:scenario_of_yours"]


def test_a_file_finds_its_neighbours_and_its_package(command: CommandLine) -> None:
    command.write("flat/neighbour_b.py", "number = 1")
    command.write("flat/asks.py", f"from neighbour_b import number\n{PLAIN}")
    command.write("deep/pack_b/__init__.py", "")
    command.write("deep/pack_b/inner/__init__.py", "")
    command.write("deep/pack_b/word.py", "number = 1")
    command.write("deep/pack_b/inner/asks.py", f"from ..word import number\n{PLAIN}")
    assert targets("flat/asks.py") == ["flat/asks.py:scenario"]
    assert targets("deep/pack_b/inner/asks.py") == ["deep/pack_b/inner/asks.py:scenario"]
    assert "pack_b.inner.asks" in sys.modules


def test_files_of_the_same_name_in_two_folders_are_two(command: CommandLine) -> None:
    command.write("north/same.py", "async def scenario_n(): pass\n")
    command.write("south/same.py", "async def scenario_s(): pass\n")
    assert targets("north", "south") == ["north/same.py:scenario_n", "south/same.py:scenario_s"]


def test_a_file_called_like_a_module_of_python_can_be_audited(command: CommandLine) -> None:
    command.write("odd/json.py", PLAIN)
    import json

    assert targets("odd/json.py") == ["odd/json.py:scenario"]
    assert sys.modules["json"] is json


def test_a_folder_is_searched_in_order_without_hidden_and_foreign_parts(command: CommandLine) -> None:
    for place in ("b/two", "b/one", "a/x", ".git/hook", "venv/lib/thing", "b/__pycache__/old", "b/.hidden"):
        command.write(f"tree/{place}.py", PLAIN)
    command.write("tree/venv/pyvenv.cfg", "")
    command.write("tree/explodes.py", "raise RuntimeError('importing runs me')")
    command.write("tree/notes.txt", "scenario")
    assert targets("tree") == ["tree/a/x.py:scenario", "tree/b/one.py:scenario", "tree/b/two.py:scenario"]


def test_bad_targets_are_told_beside_the_good_ones(command: CommandLine) -> None:
    command.write("good.py", PLAIN)
    found, bad = collect(["good.py", "missing.py", "good.py:nothing"])
    assert [each.target for each in found] == ["good.py:scenario"]
    assert [each.target for each in bad] == ["missing.py", "good.py:nothing"]


def test_a_package_that_somebody_else_has_imported_is_not_mistaken_for_this_one(command: CommandLine) -> None:
    command.write("json/__init__.py", "")
    command.write("json/decoder.py", PLAIN)
    _, (bad,) = collect(["json/decoder.py"])
    assert "its module json.decoder is taken by" in str(bad)


def test_a_check_is_found_by_module_and_by_file(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(command.folder)
    command.write("checks_c.py", "def whole(): return True\nlimit = 5\n")
    assert find_function("checks_c.py:whole")()
    assert find_function("checks_c:whole")()
    with pytest.raises(BadTarget, match="limit is a int, not a function"):
        find_function("checks_c:limit")


def test_two_files_that_look_the_same_are_told_apart_in_the_report(command: CommandLine) -> None:
    source = """
        import asyncio

        async def scenario():
            task = asyncio.create_task(asyncio.Event().wait())
            await asyncio.sleep(1)
            task.cancel()
    """
    command.write("one/twin_e.py", source)
    command.write("two/twin_e.py", source)
    answer = command.audit("one", "two")
    assert "made at     one/twin_e.py:5 in scenario" in answer.out
    assert "made at     two/twin_e.py:5 in scenario" in answer.out
