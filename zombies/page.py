"""Writes the counts of `make zombies` into docs/exec.md, between its two marks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from .cell import PATIENCE, Cell
from .table import SERVERS, WAYS

BEGIN, END = "<!-- from here on written by `make zombies` -->", "<!-- up to here -->"


def write(page: Path, cells: Sequence[Cell], versions: Mapping[str, str], minutes: float) -> None:
    """Replace what is between the marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [BEGIN, "", *_lines(cells, versions, minutes), "", END]
    page.write_text(before + "\n".join(lines) + after)


def summary(cells: Sequence[Cell]) -> Iterator[str]:
    """One line for each column."""
    for with_exec, name in ((False, "without"), (True, "with quiesce exec")):
        column = [cell for cell in cells if cell.with_exec is with_exec]
        left = sum(len(cell.left) for cell in column)
        yield f"{name}: {_leaks(column)} of {len(column)} stops left something, {left} processes in all"


def _lines(cells: Sequence[Cell], versions: Mapping[str, str], minutes: float) -> Iterator[str]:
    columns = [[cell for cell in cells if cell.with_exec is with_exec] for with_exec in (False, True)]
    without, with_exec = columns
    packages = {server.package for server in SERVERS}
    yield (
        f"{len(packages)} real servers from npm and PyPI, {len(SERVERS)} ways to use them, under the stdio client of mcp "
        f"{versions['mcp']}, whose program was stopped in {len(WAYS)} ways. {PATIENCE:g} seconds after it had exited, "
        f"**{_leaks(without)} of {len(without)} stops had left something: {_processes(without)} processes**. With "
        f"`quiesce exec --stop-on-eof --` in front of the same commands, **{_leaks(with_exec)} of {len(with_exec)}: "
        f"{_processes(with_exec)} processes**."
    )
    yield ""
    yield "| the client's program | without: servers that left something | with `quiesce exec` |"
    yield "|---|---|---|"
    for way in WAYS:
        counts = [[cell for cell in column if cell.way is way] for column in columns]
        yield f"| {way.title} | {' | '.join(map(_share, counts))} |"
    if hangs := sum(cell.hangs for cell in without):
        yield ""
        yield (
            f"In {hangs} of the stops without it, the client's program did not exit either: it waited for the end of the "
            "output of a server that ran on."
        )
    yield ""
    yield "| server | when it was stopped | without: stops that left something | what was left | with `quiesce exec` |"
    yield "|---|---|---|---|---|"
    for server in SERVERS:
        counts = [[cell for cell in column if cell.server is server] for column in columns]
        what = _most(counts[0])
        name = f"`{server.name}` {versions[server.package]}"
        yield f"| {name} | {server.does} | {_share(counts[0])} | {what} | {_share(counts[1])} |"
    yield ""
    yield (
        f"Written by `make zombies`, which names each process that is left ({minutes:.0f} minutes, "
        f"{os.cpu_count()} cores, Linux). Each cell is one run of `quiesce stoptest`, which ends what is left."
    )


def _leaks(cells: Iterable[Cell]) -> int:
    return sum(not cell.is_clean for cell in cells)


def _processes(cells: Iterable[Cell]) -> int:
    return sum(len(cell.left) for cell in cells)


def _share(cells: Sequence[Cell]) -> str:
    leaks = _leaks(cells)
    text = f"{leaks} of {len(cells)}"
    return f"**{text}**" if leaks else text


def _most(cells: Sequence[Cell]) -> str:
    """What was left by the stop that left most."""
    worst = max(cells, key=lambda cell: len(cell.left))
    kinds = Counter(worst.kinds)
    return ", ".join(f"{count} × `{kind}`" if count > 1 else f"`{kind}`" for kind, count in kinds.items())
