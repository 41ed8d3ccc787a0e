"""One server, one way to stop its client, without or with `quiesce exec`: `quiesce stoptest` counts what is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .installed import Installed
from .table import BROWSER, SILENT, Server, Way

EXEC = ("quiesce", "exec", "--stop-on-eof", "--")
PATIENCE = 10.0  # seconds from the client's exit until what runs is left over
CLIENT = Path(__file__).with_name("client.py")
READY = "the client is ready"  # in the same terminal servers write too, whole lines or not
_EXIT_WITHIN = 20.0
_START_WITHIN = 90.0
_AFTER = 1.0  # from the client's "ready": so long its last call has been running
_CELL_LIMIT = 240.0


@dataclass(frozen=True)
class Cell:
    """What came of it. `left` are command lines with their pids, without the client's own."""

    server: Server
    way: Way
    with_exec: bool
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0  # until the client had exited
    client: str = ""  # how it has ended
    hangs: bool = False  # the client itself has not exited
    not_run: str = ""  # why there is no result

    @property
    def is_clean(self) -> bool:
        """Whether it was run, and nothing was left."""
        return not (self.left or self.hangs or self.not_run)

    @property
    def kinds(self) -> list[str]:
        """What was left, in a word or two for each process."""
        return [_kind(line) for line in self.left]

    def __str__(self) -> str:
        how = "with quiesce exec" if self.with_exec else "without"
        what = ", ".join([*self.kinds, *(["the client hangs"] if self.hangs else [])]) or "nothing left"
        return f"{self.server.name} ({self.server.does}), {self.way.title}, {how}: {self.not_run or what}"

    def as_data(self) -> dict[str, object]:
        return {
            "server": self.server.name,
            "does": self.server.does,
            "way": self.way.name,
            "with_exec": self.with_exec,
            "left": self.left,
            "client_seconds": self.seconds,
            "client_ended": self.client,
            "client_hangs": self.hangs,
            "not_run": self.not_run,
        }


def stop(server: Server, way: Way, with_exec: bool, installed: Installed, silent: str) -> Cell:
    """Run one cell, twice if it could not be run: a busy machine may have been too slow."""
    cell = _stop(server, way, with_exec, installed, silent)
    return _stop(server, way, with_exec, installed, silent) if cell.not_run else cell


def _stop(server: Server, way: Way, with_exec: bool, installed: Installed, silent: str) -> Cell:
    command = [
        *(
            str(installed.python.with_name("quiesce")),
            "stoptest",
            "--json",
            "--no-exec",
            "--only",
            way.stoptest,
        ),
        *("--ready", READY, "--start-within", f"{_START_WITHIN:g}", "--after", f"{_AFTER:g}"),
        *("--exit-within", f"{_EXIT_WITHIN:g}", "--patience", f"{PATIENCE:g}", "--"),
        *(str(installed.python), str(CLIENT), way.ending),
        json.dumps(_plan(server, with_exec, installed, {BROWSER: str(installed.browser), SILENT: silent})),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CELL_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return Cell(server, way, with_exec, not_run=f"not done after {_CELL_LIMIT:g} s")
    if not done.stdout:
        return Cell(server, way, with_exec, not_run=done.stderr.strip() or f"exit status {done.returncode}")
    run = json.loads(done.stdout)["runs"][0]
    hangs = run["still_running"]
    left = [line for line in run["processes"] if CLIENT.name not in line]
    ended = "still running" if hangs else run["signal"] or f"exit {run['exit_code']}"
    return Cell(server, way, with_exec, left, run["seconds"], ended, hangs)


def _plan(
    server: Server, with_exec: bool, installed: Installed, replaced: Mapping[str, str]
) -> dict[str, Any]:
    """What the client is to do, with the two words of the table replaced."""
    command, *arguments = (*EXEC, *server.command) if with_exec else server.command
    plan = {
        "server": {
            "command": command,
            "args": arguments,
            "env": {**installed.settings, **server.settings},
            "cwd": str(installed.npm),
        },
        "opening": server.opening,
        "running": server.running,
    }
    text = json.dumps(plan)
    for word, value in replaced.items():
        text = text.replace(word, value)
    replaced_plan: dict[str, Any] = json.loads(text)
    return replaced_plan


def _kind(line: str) -> str:
    """`pid 7: /usr/bin/node /somewhere/bin/server --option` is `node server`."""
    # Node's programs may have changed their command line into one word, which is in quotes then.
    words = re.sub(r"^pid \d+: |, listens on .*$", "", line).strip("'").split(" ")
    program = words[0].rpartition("/")[2]
    if program == "npm":
        return " ".join(["npm", *words[1:2]])
    script = next((word for word in words[1:] if "/" in word and not word.startswith("-")), "")
    is_interpreter = re.fullmatch(r"node|sh|python[\d.]*", program)
    if is_interpreter and script:
        program = f"{program} {script.rpartition('/')[2]}"
    return program.removesuffix(":")
