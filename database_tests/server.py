"""A PostgreSQL server of the tests' own, and what can happen to it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

SUPERVISOR = Path(__file__).with_name("supervisor.py")
_schemas = itertools.count(1)


def binaries() -> Path:
    """Where `initdb` and `postgres` are: Debian puts them where no PATH leads."""
    places = [Path(named) for named in [os.environ.get("QUIESCE_POSTGRES", "")] if named]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places += [Path(found).parent for found in [shutil.which("initdb")] if found]
    for place in places:
        if (place / "initdb").is_file() and (place / "postgres").is_file():
            return place
    raise RuntimeError(
        "these tests need a PostgreSQL server, and there is none: `apt-get install postgresql`, "
        "or QUIESCE_POSTGRES=/folder/with/initdb"
    )


class PostgresServer:
    """A running server. What happens to it happens in a process of its own: see `supervisor`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SUPERVISOR), str(binaries())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        made = self._answer()
        self.folder = Path(made["folder"])
        self.port: int = made["port"]

    def _tell(self, *words: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the supervisor of the server has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    @property
    def url(self) -> str:
        """Over the Unix socket."""
        return f"host={self.folder} port={self.port} user=postgres dbname=app"

    @property
    def tcp_url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Over loopback; the port may be that of a proxy."""
        return f"postgresql://postgres@127.0.0.1:{port}/app"

    def new_schema(self) -> str:
        """A name that was not used yet."""
        return f"test_{os.getpid()}_{next(_schemas)}"

    def start(self) -> None:
        self._tell("start")

    def stop(self, how: str = "SIGINT") -> None:
        """SIGINT: fast. SIGQUIT: immediate. SIGKILL: all of it at once, as in a crash."""
        self._tell("stop", how)

    def hang(self) -> None:
        """Every process of it stands still."""
        self._tell("hang")

    def resume(self) -> None:
        self._tell("resume")

    def log(self) -> str:
        """The end of what it has logged."""
        text: str = self._tell("log")["log"]
        return text

    @contextlib.contextmanager
    def session(self, **settings: Any) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A session of the test itself."""
        with psycopg.connect(self.url, autocommit=True, **settings) as connection:
            yield connection

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self.session() as connection:
            found = connection.execute(statement, values)
            rows: list[tuple[Any, ...]] = found.fetchall() if found.description else []
            return rows

    def sessions(self, purpose: str) -> list[int]:
        """The backends of stores: `store`, `lease` or `watch`."""
        return [
            row[0]
            for row in self.query(
                "SELECT pid FROM pg_stat_activity WHERE application_name = %s", f"quiesce {purpose}"
            )
        ]

    def cut(self, purpose: str) -> int:
        """End those sessions; returns how many, when they have ended."""
        pids = self.sessions(purpose)
        with self.session() as session:
            for pid in pids:
                session.execute("SELECT pg_terminate_backend(%s)", (pid,))
            while session.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", (pids,)).fetchone():
                time.sleep(0.001)
        return len(pids)

    def close(self) -> None:
        """Stop it, and remove its folder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
