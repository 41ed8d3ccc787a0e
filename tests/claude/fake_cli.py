"""A program that behaves as the Claude Code CLI does on its stdin and stdout, and misbehaves on demand.

The protocol is `fake_agent`'s; here is what has to do with processes. The script is JSON in the environment variable `FAKE_CLI`; besides
the keys that `fake_agent` reads:
- `record`: a file that gets a JSON line for each thing that happened (what came in, signals, the end of input, the exit).
- `ignore_eof`, `ignore_term`: goes on all the same. `leave_tool`: does not end its tool's program when it is told to exit.
- `exit_at_start`: `[code, text on stderr]`. `deaf`: reads nothing, ever.

As the real one: SIGTERM ends its tools and exits with 143, SIGINT with 0; SIGKILL leaves its tools alive; a stdout that nobody reads, or that is
closed, holds up nothing; what is unwritten at the end of a turn after the end of input is written before it exits.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

from tests.claude.fake_agent import FakeAgent

_TICK = (
    "import os, sys, time\n"
    "name, every, times = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])\n"
    "while times:\n"
    "    times -= 1\n"
    "    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
    "    os.write(file, b'.')\n"
    "    os.close(file)\n"
    "    time.sleep(every)\n"
)
_STAY = (
    "import os, signal, sys, time\n"
    "if 'deaf' in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if 'session' in sys.argv: os.setsid()\n"
    "open(sys.argv[1], 'w').close()\n"
    "time.sleep(3600)\n"
)


class _Program:
    """A child process."""

    def __init__(self, code: str, arguments: list[str]) -> None:
        argv = [sys.executable, "-S", "-E", "-s", "-c", code, *arguments]
        self.pid: int = os.posix_spawn(sys.executable, argv, os.environ)

    def ended(self) -> bool:
        if self.pid and os.waitpid(self.pid, os.WNOHANG) != (0, 0):
            self.pid = 0
        return not self.pid

    def stop(self) -> None:
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


class Program:
    """The place of an agent: this process."""

    poll: float | None = 0.005

    def __init__(self, script: dict[str, Any]) -> None:
        self._script = script
        record = script.get("record")
        self._record = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if record else -1
        self._unwritten = bytearray()
        self._can_write = True
        self._tools: list[_Program] = []

    def now(self) -> float:
        return time.monotonic()

    def write(self, line: bytes) -> None:
        if self._can_write:
            self._unwritten += line

    def unwritten(self) -> int:
        return len(self._unwritten)

    def complain(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(2, data) :]

    def flag(self, name: str) -> bool:
        return os.path.exists(name)

    def start_tool(self, options: dict[str, Any]) -> _Program:
        ticks, every = options.get("ticks", os.devnull), options.get("every", 0.01)
        tool = _Program(_TICK, [ticks, str(every), str(options.get("times", -1))])
        self._tools.append(tool)
        return tool

    def start_grandchild(self, options: dict[str, Any]) -> None:
        _Program(_STAY, [options["ready"], *options.get("ways", [])])
        while not os.path.exists(options["ready"]):
            time.sleep(0.001)

    def happened(self, what: str, frame: object = None) -> None:
        if self._record >= 0:
            os.write(self._record, json.dumps([what, frame]).encode() + b"\n")

    def exit(self, code: int) -> NoReturn:
        self.happened("exit", code)
        os._exit(code)

    # Running

    def told_to_exit(self, number: int) -> None:
        self.happened("signal", signal.Signals(number).name)
        if number == signal.SIGTERM and self._script.get("ignore_term"):
            return
        if select.select([0], [], [], 0)[0]:  # for the record: what was sent before the signal
            for line in os.read(0, 65536).splitlines():
                self.happened("unheard", json.loads(line))
        if not self._script.get("leave_tool"):
            for tool in self._tools:
                tool.stop()
        self.exit(143 if number == signal.SIGTERM else 0)

    def run(self, agent: FakeAgent) -> NoReturn:
        signals, tell = os.pipe()
        os.set_blocking(tell, False)
        signal.set_wakeup_fd(tell)
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(each, lambda *_: None)
        os.set_blocking(1, False)
        rest, reads = b"", [signals] if self._script.get("deaf") else [signals, 0]
        while not agent.over or self._unwritten or self._script.get("ignore_eof"):
            until = agent.until()
            timeout = None if until is None else max(0.0, until - self.now())
            has_written = self._flush()
            writes = [1] if self._unwritten else []
            readable, _, _ = select.select(reads, writes, [], 0 if has_written else timeout)
            if signals in readable:
                for number in os.read(signals, 100):
                    if number != signal.SIGCHLD:
                        self.told_to_exit(number)
            if 0 in readable:
                data = os.read(0, 65536)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    agent.line(line)
                if not data:
                    reads.remove(0)
                    agent.eof()
            agent.step()
        self.exit(agent.exit_code)

    def _flush(self) -> bool:
        """Write what can be written; whether there was something."""
        if not self._unwritten:
            return False
        try:
            del self._unwritten[: os.write(1, self._unwritten[:65536])]
        except BlockingIOError:
            return False
        except BrokenPipeError:  # the real one takes no notice either
            self._can_write = False
            self._unwritten.clear()
        return True


def main() -> NoReturn:
    script: dict[str, Any] = json.loads(os.environ.get("FAKE_CLI", "{}"))
    place = Program(script)
    place.happened("argv", sys.argv[1:])
    if "exit_at_start" in script:
        code, text = script["exit_at_start"]
        place.complain(text)
        place.exit(code)
    if "--mcp-config" in sys.argv:
        servers = json.loads(sys.argv[sys.argv.index("--mcp-config") + 1])["mcpServers"]
        script["mcp_servers"] = [name for name, server in servers.items() if server["type"] == "sdk"]
    place.run(FakeAgent(script, place, asks_permission="--permission-prompt-tool" in sys.argv))
