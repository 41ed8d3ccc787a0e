"""The packages whose suites are run, and what each of their suites needs."""

from __future__ import annotations

import socket
from dataclasses import dataclass

# How a test ends that fails because the collector came by, and found what some test before it had dropped.
GARBAGE = "failed by garbage"


@dataclass(frozen=True)
class Suite:
    """One package. `plugins` are pytest's names for the plugins that its suite needs: no others are loaded."""

    package: str
    version: str
    plugins: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    is_quick: bool = False


def _without_ipv6() -> tuple[str, ...]:
    """Where `localhost` has no IPv6 address, tests of IPv6 fail, and what they leave fails others when the
    collector finds it.
    """
    try:
        socket.getaddrinfo("localhost", 0, socket.AF_INET6)
    except OSError:
        return ("-k", "not ipv6")
    return ()


_LOOPS = ("-o", "asyncio_default_fixture_loop_scope=function")
# Where warnings are errors, one is about the order in which plugins are imported.
_ORDER = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
SUITES = (
    Suite("aiolimiter", "1.3.0", ("asyncio",), is_quick=True),
    Suite("aiostream", "0.8.1", ("asyncio",), is_quick=True),
    Suite("aiofiles", "25.1.0", ("asyncio",), is_quick=True),
    Suite("async_lru", "2.4.0", ("asyncio", "timeout"), _LOOPS),
    Suite("janus", "2.0.0", ("asyncio", "codspeed"), _LOOPS),
    Suite("aiojobs", "1.4.0", ("asyncio", "aiohttp"), ("-o", "asyncio_mode=auto", *_LOOPS)),
    Suite(
        "httpcore", "1.0.9", ("anyio", "trio", "httpbin"), (*_ORDER, "-W", "ignore::DeprecationWarning")
    ),  # httpbin's own source has escapes that Python deprecates
    Suite("starlette", "1.10.0", ("anyio", "codspeed")),
    # What its mark calls `network` needs the internet.
    Suite("anyio", "4.16.0", ("anyio", "pytest_mock", "timeout"), ("-m", "not network", *_without_ipv6())),
    # What it leaves out tests the documentation and the examples, and needs their tools.
    Suite(
        "mcp",
        "2.3.0",
        ("anyio", "examples"),
        (
            *_ORDER,
            *(f"--ignore=tests/{part}" for part in ("docs", "docs_src", "examples", "test_examples.py")),
            "--ignore=tests/interaction/transports/test_stdio.py",
        ),
    ),
)
