"""The judge of one case: `python -m peers.claude_cli.judge BACKEND CASE CLI [--show]`, prints a line of JSON.

It enters a namespace with nothing but loopback, starts the stand-in of the Messages API in it and then the
program, and looks at what the program leaves.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import loopback

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 75.0  # seconds for the program to say how it went
PATIENCE = 10.0  # for processes that are on their way out, where nobody waits for them
QUIET = 0.3  # in which there would be six ticks


def main(backend: str, case: str, cli: str, *, is_shown: bool = False) -> None:
    loopback.enter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of the `finally` below
    errors = None if is_shown else subprocess.DEVNULL
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "folder")
        folder.mkdir()
        log = Path(home, "requests")
        api = subprocess.Popen(
            [sys.executable, str(ROOT / "peers" / "standins" / "messages_api.py"), str(log)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert api.stdout is not None
        control, theirs = os.pipe()
        strangers = [str(os.getpid()), str(api.pid)]
        its_case = [backend, case, str(folder), cli, str(theirs), *strangers]
        program = subprocess.Popen(
            [sys.executable, "-m", "peers.claude_cli.program", *its_case],
            cwd=ROOT,
            env=settings(home, api.stdout.readline().strip()),
            pass_fds=[theirs],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        os.close(theirs)
        try:
            verdict = judge(program, control, folder / "ticks", api.pid)
        finally:
            kill_all()
            program.wait()
            api.wait()
        if is_shown:
            print(log.read_text() if log.exists() else "no requests", file=sys.stderr)
    print(json.dumps(verdict))


def settings(home: str, port: str) -> dict[str, str]:
    """All that the CLI gets to know: nothing of whoever runs this."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": home,
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
        "ANTHROPIC_API_KEY": "sk-ant-stand-in",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }


def judge(program: subprocess.Popen[bytes], control: int, ticks: Path, api: int) -> dict[str, Any]:
    message = next_message(control)
    if message is None:
        return {"why": f"it said nothing (returncode {program.poll()})"}
    if message["at"] == "ready":
        message = killed(program, ticks, api)
    elif message["at"] != "stopped":
        return {"why": message["why"]}
    time.sleep(QUIET)
    late = others({api, program.pid}, is_guarded=program.poll() is None)
    return {
        "left": [*message["left"], *(each for each in late if each not in message["left"])],
        "seconds": message["seconds"],
        "worked on": message["worked on"],
        "after": size(ticks) - message["ticks"],
    }


def killed(program: subprocess.Popen[bytes], ticks: Path, api: int) -> dict[str, Any]:
    """Kill it, and see how long what it has started lives on."""
    began, before = time.monotonic(), size(ticks)
    program.kill()
    program.wait()
    while (left := others({api}, is_guarded=False)) and time.monotonic() < began + PATIENCE:
        time.sleep(0.005)
    now = size(ticks)
    return {"left": left, "seconds": time.monotonic() - began, "worked on": now - before, "ticks": now}


def others(strangers: set[int], is_guarded: bool) -> list[str]:
    """Who is there; of a program that is alive, its guard process may be."""
    return [
        command[:80]
        for pid, command in loopback.everybody()
        if pid not in strangers and not (is_guarded and "guardian_main.py" in command)
    ]


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def next_message(control: int) -> dict[str, Any] | None:
    until, data = time.monotonic() + LIMIT, b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([control], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(control, 65536) if ready else b""
        if not piece:
            return None
        data += piece
    message: dict[str, Any] = json.loads(data)
    return message


def kill_all() -> None:
    """End whoever is in this namespace, each by its id."""
    until = time.monotonic() + 5
    while (
        found := [pid for pid, command in loopback.everybody() if command != "zombie"]
    ) and time.monotonic() < until:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)


if __name__ == "__main__":
    main(*(word for word in sys.argv[1:] if word != "--show"), is_shown="--show" in sys.argv)
