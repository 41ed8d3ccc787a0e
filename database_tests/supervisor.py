"""One PostgreSQL server in a temporary folder, for as long as the program that started this one lives.

    python supervisor.py BINARIES

It is told what to do by lines on its standard input, and answers each with one line of JSON. At the end of its input it
stops the server, kills what is left, and removes the folder: so nothing stays behind even if the tests are killed.

The server may not run as root: if this program does, it becomes `postgres` or `nobody`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "on",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "timezone": "UTC",
    "lc_messages": "C",
}
# One user has a password, over TCP; the others are let in.
ACCESS = """
host all secretive 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
local all all trust
"""


class Supervisor:
    def __init__(self, binaries: Path) -> None:
        self.binaries = binaries
        self.user = user_for_server()
        self.folder = Path(tempfile.mkdtemp(prefix="quiesce-pg-", dir="/tmp"))
        self.data = self.folder / "data"
        self.port = free_port()
        self.postmaster: subprocess.Popen[bytes] | None = None
        self.stopped: list[int] = []

    def make(self) -> dict[str, object]:
        if self.user is not None:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        self.run(
            "initdb",
            "-D",
            self.data,
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "-A",
            "trust",
            "--no-sync",
        )
        settings = {**SETTINGS, "port": self.port, "unix_socket_directories": str(self.folder)}
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        (self.data / "pg_hba.conf").write_text(ACCESS)
        self.start()
        self.run("createdb", "-h", self.folder, "-p", self.port, "-U", "postgres", "app")
        return {"folder": str(self.folder), "port": self.port}

    def run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [str(self.binaries / program), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            **self.identity(),
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.strip()}")

    def identity(self) -> dict[str, Any]:
        if self.user is None:
            return {}
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}

    def start(self) -> None:
        if self.postmaster is not None:
            return
        with (self.folder / "log").open("ab") as log:
            self.postmaster = subprocess.Popen(
                [str(self.binaries / "postgres"), "-D", str(self.data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self.identity(),
            )
        until = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError):
                if "ready" in (self.data / "postmaster.pid").read_text():
                    return
            if self.postmaster.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.01)

    def stop(self, how: signal.Signals) -> None:
        """SIGINT: fast. SIGQUIT: immediate. SIGKILL: everything at once, as in a crash of the machine."""
        if self.postmaster is None:
            return
        self.resume()
        if how == signal.SIGKILL:
            self.postmaster.send_signal(signal.SIGSTOP)  # it is not to start others meanwhile
            for pid in self.children():
                send(pid, signal.SIGKILL)
        self.postmaster.send_signal(how)
        try:
            self.postmaster.wait(20)
        except subprocess.TimeoutExpired:
            self.stop(signal.SIGKILL)
        self.postmaster = None
        if how == signal.SIGKILL:
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def hang(self) -> None:
        """Every process of the server stands still."""
        assert self.postmaster is not None
        self.stopped = [self.postmaster.pid]
        send(self.postmaster.pid, signal.SIGSTOP)
        self.stopped += self.children()
        for pid in self.stopped:
            send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in reversed(self.stopped):
            send(pid, signal.SIGCONT)
        self.stopped = []

    def children(self) -> list[int]:
        assert self.postmaster is not None
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[1]) == self.postmaster.pid:
                        found.append(int(folder.name))
        return found

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.stop(signal.SIGINT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, words: list[str]) -> dict[str, object]:
        if words[0] == "start":
            self.start()
        elif words[0] == "stop":
            self.stop(signal.Signals[words[1]])
        elif words[0] == "hang":
            self.hang()
        elif words[0] == "resume":
            self.resume()
        elif words[0] == "log":
            return {"log": (self.folder / "log").read_text()[-4000:]}
        return {}


def user_for_server() -> pwd.struct_passwd | None:
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("there is neither a user `postgres` nor `nobody` to run the server as")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # it ends with its input
    supervisor = Supervisor(Path(sys.argv[1]))
    try:
        say(supervisor.make)
        for line in sys.stdin:
            say(partial(supervisor.do, line.split()))
    finally:
        supervisor.close()


def say(work: Callable[[], dict[str, object]]) -> None:
    try:
        answer = work()
    except Exception as error:
        answer = {"error": str(error)}
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
