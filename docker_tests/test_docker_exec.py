"""The program of docs/recipes/docker.md: what it starts in a container ends there."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from quiesce import Grace, Remote, Scope

from .docker_exec import Command, in_container

PROGRAM = Path(__file__).with_name("docker_exec.py")
TREE = "echo started; sleep 500 & sleep 501; echo never"
DEAF = f"trap '' TERM; {TREE}"


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def running_in(container: str) -> list[str]:
    """The commands in it, without its first one and without zombies."""
    rows = [
        row.split(None, 2)[1:] for row in docker("top", container, "-eo", "pid,stat,args").splitlines()[1:]
    ]
    return [command for state, command in rows if state[0] != "Z" and command != "sleep 1000"]


@pytest.fixture
def container() -> Iterator[str]:
    name = docker("run", "--detach", "--network", "none", "box", "sleep", "1000")
    yield name
    docker("rm", "--force", name)


@contextmanager
def run(*command: str) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def run_program(container: str, script: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return run(sys.executable, str(PROGRAM), container, "sh", "-c", script)


def test_without_it_the_command_runs_on_in_the_container(container: str) -> None:
    with run("docker", "exec", container, "sh", "-c", TREE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "started\n"
        client.terminate()
    time.sleep(1)
    assert len(running_in(container)) == 3


@pytest.mark.parametrize("script", [TREE, DEAF], ids=["one that ends at SIGTERM", "one that is deaf to it"])
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_program_ends_the_tree_in_the_container(
    container: str, script: str, sig: signal.Signals
) -> None:
    with run_program(container, script) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "started\n"
        assert len(running_in(container)) == 3
        program.send_signal(sig)
        _, said = program.communicate(timeout=30)
    assert running_in(container) == []
    assert "left" not in said, said


def test_a_command_that_ends_gives_its_output_and_its_exit_status(container: str) -> None:
    with run_program(container, "echo one; echo two; exit 3") as program:
        printed, said = program.communicate(timeout=30)
    assert (printed, said, program.returncode) == ("one\ntwo\n", "", 3)


def test_a_container_that_does_not_exist_is_an_error() -> None:
    with run_program("nowhere", "true") as program:
        _, said = program.communicate(timeout=30)
    assert "No such container: nowhere" in said
    assert "was not started: docker exec has exit status 1" in said


async def started(container: str, script: str = TREE) -> Remote[Command, int]:
    work = await in_container(container, "sh", "-c", script).open()
    assert await work.value.output.readline() == b"started\n"
    return work


def test_a_stop_of_the_scope_around_it_ends_it(container: str) -> None:
    async def main() -> None:
        async with Scope(on_error="report") as scope:
            await started(container)
            scope.cancel("enough")
        assert running_in(container) == []

    asyncio.run(main())


def test_a_timeout_ends_it_before_it_is_raised(container: str) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2), in_container(container, "sh", "-c", TREE) as command:
                await command.wait()
        assert running_in(container) == []

    asyncio.run(main())


def test_a_container_that_is_removed_has_ended_its_command(container: str) -> None:
    async def main() -> None:
        work = await started(container)
        docker("kill", container)
        report = await work.close()
        assert report.clean, report

    asyncio.run(main())


def test_a_container_that_is_paused_leaves_its_command_over_until_it_goes_on(container: str) -> None:
    async def main() -> None:
        async with Scope(on_error="report", grace=Grace(cancel=1, terminate=0.5, kill=0.5)):
            work = await started(container)
            docker("pause", container)
            report = await work.close()
            assert [(one.kind, one.name) for one in report.left] == [
                ("remote", f"sh -c {TREE} in {container}")
            ]
            assert "is paused" in str(report)
            docker("unpause", container)
            report = await work.close(grace=Grace(cancel=10))
            assert report.clean, report
            assert running_in(container) == []

    asyncio.run(main())
