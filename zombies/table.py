"""The servers, what they are doing when their client is stopped, and the ways in which it is stopped.

Versions are in package.json, mcp-2.txt and mcp-1.txt. Two words in a command are replaced: BROWSER by a real
Chromium, and SILENT by the address of a web server that never answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BROWSER, SILENT = "{browser}", "{silent}"
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Way:
    """One way to stop the client: by `stoptest`'s way of that name, and `ending` is what the client does at the end
    of its input.
    """

    name: str
    title: str
    stoptest: str = "stdin"
    ending: str = "return"


@dataclass(frozen=True)
class Server:
    """One server as it would stand in an `mcp.json`. `opening` are calls that have ended before the client is
    stopped; `running` is one that has not.
    """

    package: str
    command: tuple[str, ...]
    does: str
    opening: tuple[Call, ...] = ()
    running: Call | None = None
    settings: dict[str, str] = field(default_factory=dict)  # environment variables
    is_fast: bool = False  # one of the handful that the gate runs

    @property
    def name(self) -> str:
        """As people write it: with `npx` or `uvx` in front if it is started so."""
        wrapper = self.command[0] if self.command[0] in ("npx", "uvx") else ""
        return f"{wrapper} {self.package}".strip()


WAYS = (
    Way("return", "its input is closed, and the block of the session ends"),
    Way("raise", "an exception ends the block", ending="raise"),
    Way("cancel", "its task is cancelled", ending="cancel"),
    Way("ctrl-c", "Ctrl-C", "ctrl-c"),
    Way("ctrl-c-2", "Ctrl-C twice", "ctrl-c-2"),
    Way("sigterm", "SIGTERM", "sigterm"),
    Way("hang-up", "its terminal is closed (SIGHUP)", "hang-up"),
    Way("sigkill", "SIGKILL", "sigkill"),
)

_LONG: Call = ("trigger-long-running-operation", {"duration": 600, "steps": 600})
_PAGE = "data:text/html,hello"
_COUNT = (
    "with recursive n(i) as (select 1 union all select i + 1 from n limit 20000000000) select count(*) from n"
)

EVERYTHING = "@modelcontextprotocol/server-everything"
SERVERS = (
    Server(EVERYTHING, ("mcp-server-everything",), "nothing"),
    Server(EVERYTHING, ("mcp-server-everything",), "a tool call", running=_LONG),
    Server(EVERYTHING, ("npx", "-y", EVERYTHING), "a tool call", running=_LONG, is_fast=True),
    Server(
        "@modelcontextprotocol/server-filesystem",
        ("npx", "-y", "@modelcontextprotocol/server-filesystem", "."),
        "nothing",
    ),
    Server(
        "@modelcontextprotocol/server-memory", ("npx", "-y", "@modelcontextprotocol/server-memory"), "nothing"
    ),
    Server(
        "@modelcontextprotocol/server-sequential-thinking", ("mcp-server-sequential-thinking",), "nothing"
    ),
    Server("@upstash/context7-mcp", ("npx", "-y", "@upstash/context7-mcp"), "nothing"),
    Server(
        "@notionhq/notion-mcp-server",
        ("npx", "-y", "@notionhq/notion-mcp-server"),
        "nothing",
        settings={"NOTION_TOKEN": "ntn_0"},
    ),
    Server(
        "@playwright/mcp",
        ("npx", "-y", "@playwright/mcp", "--headless", "--no-sandbox", "--executable-path", BROWSER),
        "its browser shows a page",
        opening=(("browser_navigate", {"url": _PAGE}),),
    ),
    Server(
        "@playwright/mcp",
        ("playwright-mcp", "--headless", "--no-sandbox", "--executable-path", BROWSER),
        "its browser waits for a page",
        opening=(("browser_navigate", {"url": _PAGE}),),
        running=("browser_navigate", {"url": SILENT}),
    ),
    Server(
        "chrome-devtools-mcp",
        (
            *("npx", "-y", "chrome-devtools-mcp", "--headless", "--isolated", "--no-usage-statistics"),
            *("--no-performance-crux", "--chrome-arg=--no-sandbox", "--executable-path", BROWSER),
        ),
        "its browser shows a page",
        opening=(("new_page", {"url": _PAGE}),),
    ),
    Server(
        "mcp-server-commands",
        ("npx", "-y", "mcp-server-commands"),
        "runs a command",
        running=("run_command", {"command": "sleep 600"}),
        is_fast=True,
    ),
    Server("mcp-server-git", ("uvx", "mcp-server-git"), "nothing"),
    Server("mcp-server-time", ("uvx", "mcp-server-time"), "nothing"),
    Server(
        "mcp-server-fetch",
        ("uvx", "mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips"),
        "fetches a page",
        running=("fetch", {"url": SILENT}),
    ),
    Server(
        "mcp-server-sqlite",
        ("mcp-server-sqlite", "--db-path", ":memory:"),
        "a long query",
        running=("read_query", {"query": f"select * from ({_COUNT})"}),
    ),
    Server(
        "mcp-shell-server",
        ("mcp-shell-server",),
        "runs a command",
        running=("shell_execute", {"command": ["sleep", "600"], "directory": "/tmp", "timeout": 600}),
        settings={"ALLOW_COMMANDS": "sleep"},
    ),
    Server(
        "cli-mcp-server",
        ("cli-mcp-server",),
        "runs a command",
        running=("run_command", {"command": "sleep 600"}),
        settings={
            "ALLOWED_DIR": "/tmp",
            "ALLOWED_COMMANDS": "sleep",
            "ALLOWED_FLAGS": "all",
            "COMMAND_TIMEOUT": "600",
        },
        is_fast=True,
    ),
)

# What the gate does to some of the servers: both with `quiesce exec`, and the first without it too. There something
# has to be left, or the rest would show nothing.
FAST_WAYS = ("sigkill", "ctrl-c-2")
