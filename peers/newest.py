"""The newest releases beside those that are pinned: which cells of `make peers` would differ. It fails nothing.

An environment for each that a pinned one has, with whatever the package index resolves today. Where all that
is stopped is of the pinned version, there is nothing to run. Else its cells run again, without the column
that the recipes are for, and those that differ from the table are printed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from peers.page import HEADS, Section
from peers.table import STOPS, Peer
from peers.verdict import Verdict
from throwaway import NotInstalled, find_python, pip, run

SIDES = ("without", "dropin")


def make_newest(environment: Path, peers: Sequence[Peer], wheel: Path) -> dict[str, str]:
    """Make an environment with the newest release of what these stop; returns the versions."""
    shutil.rmtree(environment, ignore_errors=True)
    run(
        [str(find_python(max(peer.minor for peer in peers))), "-m", "venv", "--without-pip", str(environment)]
    )
    wanted = sorted({peer.newest or peer.package for peer in peers})
    run([*pip(environment), "install", *wanted, str(wheel)])
    (environment / "home").mkdir()
    return versions_in(environment, peers)


def versions_in(environment: Path, peers: Sequence[Peer]) -> dict[str, str]:
    """The versions of what these stop."""
    names = sorted({peer.package for peer in peers})
    program = "import json, sys; from importlib.metadata import version as v; print(json.dumps({n: v(n) for n in sys.argv[1:]}))"
    command = [str(environment / "bin" / "python"), "-c", program, *names]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    versions: dict[str, str] = json.loads(said)
    return versions


def changes(
    build: Path,
    name: str,
    peers: Sequence[Peer],
    wheel: Path,
    sections: Sequence[Section],
    judge: Callable[[Section, Path, str, str], Verdict],
) -> Iterator[str]:
    """What differs in the environment `name`, a line each. `judge` runs a cell, with a Python, a side and a stop."""
    environment = build / f"{name}-newest"
    try:
        newest = make_newest(environment, peers, wheel)
    except (NotInstalled, subprocess.SubprocessError) as error:
        yield f"{name}: the newest releases cannot be installed: {str(error).splitlines()[0]}"
        return
    pinned = versions_in(build / name, peers)
    if newest == pinned:
        yield f"{name}: {', '.join(f'{package} {version}' for package, version in pinned.items())} is the newest"
        return
    yield f"{name}: {', '.join(f'{package} {pinned[package]} -> {newest[package]}' for package in newest)}"
    python = environment / "bin" / "python"
    for section in sections:
        if section.peer.environment != name:
            continue
        sides = section.scenario.sides
        for stop, row in section.rows.items():
            if isinstance(row, str):
                continue
            for side in SIDES:
                if side in sides:
                    before, now = row[sides.index(side)], judge(section, python, side, stop)
                    if what(before) != what(now):
                        yield f"  {section.title}, {STOPS[stop]}, {HEADS[side]}: {before} -> {now}"


def what(verdict: Verdict) -> tuple[bool, list[str], list[str]]:
    """What counts as a difference: not the seconds."""
    return bool(verdict.not_run), sorted(verdict.faults), sorted(verdict.left)


if __name__ == "__main__":
    sys.exit("run `make peers`")
