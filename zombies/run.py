"""Stop the client of real MCP servers in every way, and count what is left of them: `make zombies`.

    python3 zombies/run.py [--fast] [--only SERVER]... [--way WAY]... [--json] [--fresh]

The servers come from npm and PyPI, in the versions that the files in zombies/ name, and are kept as the
environments of `make seeds` are. A client program uses each of them with mcp's own client (zombies/client.py).
Each cell, without and with `quiesce exec` in front of the server, is a run of `quiesce stoptest` on that program:
it sees what is left, and ends it.

A whole run writes its table into docs/exec.md. It exits 1 if something is left with `quiesce exec`, if a cell could not
be run, or if --fast finds nothing left without it.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from throwaway import NotInstalled, environments, locked  # noqa: E402
from zombies.cell import Cell, stop  # noqa: E402
from zombies.installed import Installed  # noqa: E402
from zombies.page import summary, write  # noqa: E402
from zombies.table import FAST_WAYS, SERVERS, WAYS, Server, Way  # noqa: E402

PAGE = ROOT / "docs" / "exec.md"
AT_ONCE = 4  # cells: most of their time they wait


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Stop the client of real MCP servers, and count what is left."
    )
    parser.add_argument("--fast", action="store_true", help="a handful of cells, for continuous integration")
    parser.add_argument(
        "--only", metavar="SERVER", action="append", default=[], help="servers whose name contains this"
    )
    parser.add_argument("--way", action="append", choices=[way.name for way in WAYS])
    parser.add_argument("--json", action="store_true", help="print the results as JSON, and write no page")
    parser.add_argument("--fresh", action="store_true", help="install everything again")
    options = parser.parse_args()
    if not sys.platform.startswith("linux"):
        parser.error("quiesce exec needs Linux")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control has started us in the background, deaf to Ctrl-C: the clients shall hear it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [
        server
        for server in SERVERS
        if (server.is_fast or not options.fast) and any(name in server.name for name in options.only or [""])
    ]
    names = options.way or (FAST_WAYS if options.fast else [way.name for way in WAYS])
    wanted = [
        (server, way, with_exec)
        for server in chosen
        for way in WAYS
        if way.name in names
        for with_exec in (False, True)
        if with_exec or not options.fast or way.name == FAST_WAYS[0]
    ]
    folder = environments("zombies")
    with locked(folder):
        installed = Installed(folder)
        try:
            installed.install(is_fresh=options.fresh)
        except NotInstalled as error:
            print(f"FAILED: the servers cannot be installed.\n{error}")
            return 1
        started = time.monotonic()
        cells = list(stop_all(wanted, installed, quiet=options.json))
        minutes = (time.monotonic() - started) / 60
    if options.json:
        print(json.dumps([cell.as_data() for cell in cells], indent=2))
    else:
        print("", *summary(cells), f"{minutes * 60:.0f} s in all", sep="\n")
    complaints = list(complaints_of(cells, must_show=options.fast and not options.only))
    if not (options.fast or options.only or options.way or options.json or complaints):
        write(PAGE, cells, installed.versions(), minutes)
        print(f"{PAGE.relative_to(ROOT)} written")
    print(*complaints, sep="\n", file=sys.stderr)
    return 1 if complaints else 0


def stop_all(wanted: list[tuple[Server, Way, bool]], installed: Installed, *, quiet: bool) -> Iterator[Cell]:
    """Run the cells, and print what is left as it is found."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as silent, ThreadPoolExecutor(AT_ONCE) as pool:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        try:
            servers, ways, with_exec = zip(*wanted, strict=True)
            for cell in pool.map(stop, servers, ways, with_exec, repeat(installed), repeat(address)):
                if not quiet:
                    print(cell, flush=True)
                yield cell
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def complaints_of(cells: list[Cell], *, must_show: bool) -> Iterator[str]:
    """What is not as it should be."""
    for cell in cells:
        if cell.not_run or (cell.with_exec and not cell.is_clean):
            yield "; ".join([f"FAILED: {cell}", *cell.left])
    without = [cell for cell in cells if not cell.with_exec]
    if must_show and all(cell.is_clean for cell in without):
        yield "FAILED: without quiesce exec nothing was left either, so that these cells show nothing"


if __name__ == "__main__":
    sys.exit(main())
