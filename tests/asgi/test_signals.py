"""Real server processes that are told to end while a stream without end is under way: once, twice, three times."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from tests.asgi.servers import an_upstream, connect, read_until, request, run_in, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
APP = "tests.asgi.signal_app:app"
SERVERS = {
    "uvicorn": ["uvicorn", APP, "--port", "PORT", "--log-level", "critical"],
    "hypercorn": ["hypercorn", APP, "--bind", "127.0.0.1:PORT", "--workers", "0", "--log-level", "CRITICAL"],
    "hypercorn-trio": [
        *["hypercorn", APP, "--bind", "127.0.0.1:PORT", "--workers", "0", "--log-level", "CRITICAL"],
        *["--worker-class", "trio"],
    ],
    "hypercorn-worker": ["hypercorn", APP, "--bind", "127.0.0.1:PORT", "--log-level", "CRITICAL"],
}
if sys.version_info >= (3, 12):
    # There hypercorn's worker waits without a limit for connections that are open, and cannot be told: see docs/asgi.md.
    del SERVERS["hypercorn-worker"]
TERM, INT = signal.SIGTERM, signal.SIGINT
# Seconds to exit: hypercorn waits three for its connections, the grace of the application is one, and a machine may stall.
LONGEST = 15.0


class Program:
    """A server in a process of its own."""

    def __init__(self, server: str, upstream: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        command = [word.replace("PORT", str(self.port)) for word in SERVERS[server]]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, "UPSTREAM": upstream, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    async def wait_until_ready(self) -> None:
        with anyio.fail_after(20):
            while True:
                try:
                    await (await connect(self.port)).aclose()
                    return
                except OSError:
                    await anyio.sleep(0.05)

    async def stop(self, *signals: signal.Signals) -> float:
        """Send the signals, a moment apart; how long it took to exit."""
        started = time.monotonic()
        for number in signals:
            self._process.send_signal(number)
            await anyio.sleep(0.15)
        with anyio.fail_after(LONGEST):
            while self._process.poll() is None:
                await anyio.sleep(0.02)
        return time.monotonic() - started

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def output(self) -> str:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            return pipe.read()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.mark.time_limit(60)
@pytest.mark.parametrize(
    ("server", "signals"),
    [
        *[(server, [TERM]) for server in SERVERS],
        *[(server, [INT, INT, INT]) for server in SERVERS if server != "hypercorn-worker"],
        ("uvicorn", [INT, INT]),
        ("uvicorn", [TERM, TERM, TERM]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(number.name for number in value),
)
def test_a_server_that_is_told_to_end_ends_and_leaves_nothing_upstream(
    server: str, signals: list[signal.Signals]
) -> None:
    async def main() -> None:
        async with an_upstream() as upstream:
            program = Program(server, upstream.url)
            try:
                await program.wait_until_ready()
                async with await connect(program.port) as client:
                    await client.send(request("/endless"))
                    await read_until(client, b"data: word")
                    assert upstream.open == 1
                    await program.stop(*signals)
                await until(lambda: upstream.open == 0, "the upstream is left")
                output.append(program.output())
            finally:
                program.kill()

    output: list[str] = []
    run_in("hypercorn", main)
    if server == "hypercorn-worker" and signals == [TERM]:
        # The signal goes to the parent process, and its workers are told by a flag that no application sees.
        assert "stream ended, cancelled: the server cancelled the request" in output[0]
        assert "worker ended, shutdown: the server stopped" in output[0]
    elif len(signals) == 1:
        name = signals[0].name
        assert f"stream ended, shutdown: {name}" in output[0]
        assert f"worker ended, shutdown: {name}" in output[0]
        assert f"scope 'GET /endless' stopped (shutdown: {name})" in output[0]
    else:
        assert "stream ended" in output[0]  # its clean-up has run, whatever the reason


@pytest.mark.time_limit(60)
def test_a_thread_that_does_not_listen_is_named_when_the_server_ends() -> None:
    async def main() -> None:
        program = Program("uvicorn", "")
        try:
            await program.wait_until_ready()
            async with await connect(program.port) as client:
                await client.send(request("/deaf"))
                assert await anyio.to_thread.run_sync(program.line) == "deaf begun\n"
                await program.stop(TERM)
            output.append(program.output())
        finally:
            program.kill()

    output: list[str] = []
    run_in("hypercorn", main)
    assert "request: scope 'GET /deaf' stopped (shutdown: SIGTERM)" in output[0]
    assert "left: task 'GET /deaf', stuck at" in output[0]
