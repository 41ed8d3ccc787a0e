"""What `pytest --quiesce` costs on suites of a thousand short tests, as CPU time beside the same suites without it.

    .venv/bin/python bench/pytest_plugin.py [--rounds N]

Each suite is a real pytest in a process of its own, with the plugins it needs and no others, and its whole
CPU time counts, user and system, from the start of the interpreter to its exit. Rounds without and with
`--quiesce` take turns, and the best of each is shown; docs/performance.md holds a result. No test leaves
anything behind: every suite has to pass both ways.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

TESTS = 1000
ROUNDS = 5

# Plugins that the suite needs, and a test of it. A test of each suite starts a task and waits for it, as far
# as it is async.
SUITES = {
    "not async": ((), "def test_{n}():\n    assert sorted([3, 1, 2]) == [1, 2, 3]\n"),
    "asyncio.run in a plain test": ((), "def test_{n}():\n    assert asyncio.run(work()) == 3\n"),
    "pytest-asyncio, a loop per test": (
        ("asyncio",),
        "@pytest.mark.asyncio\nasync def test_{n}():\n    assert await work() == 3\n",
    ),
    "pytest-asyncio, a loop per module": (
        ("asyncio",),
        "@pytest.mark.asyncio(loop_scope='module')\nasync def test_{n}():\n    assert await work() == 3\n",
    ),
    "anyio's plugin, asyncio": (
        ("anyio",),
        "@pytest.mark.anyio\nasync def test_{n}(anyio_backend_name):\n    assert await work() == 3\n",
    ),
    "anyio's plugin, trio": (
        ("anyio",),
        "@pytest.mark.anyio\nasync def test_{n}(anyio_backend_name):\n    await trio.lowlevel.checkpoint()\n",
    ),
    "pytest-trio": (
        ("trio",),
        "@pytest.mark.trio\nasync def test_{n}():\n    await trio.lowlevel.checkpoint()\n",
    ),
}
HEAD = """
import asyncio
import pytest

async def work():
    return await asyncio.create_task(add(1, 2))

async def add(a, b):
    await asyncio.sleep(0)
    return a + b
"""
BACKEND = "@pytest.fixture(params=['{name}'])\ndef anyio_backend(request):\n    return request.param\n"


def write_suite(folder: Path, name: str) -> None:
    """A thousand tests in ten files."""
    _, test = SUITES[name]
    head = HEAD + ("import trio\n" if "trio" in name else "")
    if name.startswith("anyio"):
        head += BACKEND.format(name=name.rpartition(" ")[2])
    for file in range(10):
        numbers = range(file * TESTS // 10, (file + 1) * TESTS // 10)
        text = head + "\n".join(test.replace("{n}", str(number)) for number in numbers)
        (folder / f"test_{file}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")


def cpu_of(folder: Path, name: str, *options: str) -> float:
    """The CPU seconds of one session."""
    loaded = [part for plugin in (*SUITES[name][0], "quiesce.audit.pytest_plugin") for part in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *loaded, *options]
    settings = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**settings, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or f"{TESTS} passed" not in said:
        raise SystemExit(f"{name} {' '.join(options)} did not pass:\n{said[-3000:]}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="What pytest --quiesce costs.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    print(
        f"CPython {platform.python_version()}, pytest {version('pytest')}, pytest-asyncio {version('pytest-asyncio')}, "
        f"anyio {version('anyio')}, trio {version('trio')}, best of {rounds} rounds"
    )
    print(f"\n| {TESTS:,} short tests | without (CPU s) | with --quiesce | ratio |")
    print("|---|---|---|---|")
    for name in SUITES:
        with tempfile.TemporaryDirectory(prefix="quiesce-bench-") as folder:
            write_suite(Path(folder), name)
            bare = watched = float("inf")
            for _ in range(rounds):
                bare = min(bare, cpu_of(Path(folder), name))
                watched = min(watched, cpu_of(Path(folder), name, "--quiesce"))
        print(f"| {name} | {bare:.2f} | {watched:.2f} | {watched / bare:.2f} |", flush=True)


if __name__ == "__main__":
    main()
