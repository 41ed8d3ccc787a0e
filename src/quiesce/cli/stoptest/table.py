"""The results of `quiesce stoptest`: a table for people, and JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from quiesce.kernel.inner import signal_of

from .trial import Result
from .ways import Way

DIRECT, UNDER_EXEC = "as it is", "under quiesce exec"
_SHOWN_FILES = 3
Results = Mapping[tuple[Way, str], Result]

_RED, _GREEN, _BOLD, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[0m"


def table(results: Results, columns: Sequence[str], *, width: int, color: bool) -> Iterator[str]:
    """The lines of the table, and below it what was left. One cell per line where it is wider than `width`."""
    ways = list(dict.fromkeys(way for way, _ in results))
    cells = {(way, column): cell(results[way, column]) for way in ways for column in columns}
    first = max(len(way.title) for way in ways)
    widths = [max(len(column), *(len(cells[way, column]) for way in ways)) for column in columns]
    paints = {key: _GREEN if result.is_clean else _RED for key, result in results.items()}
    if first + sum(widths) + 2 * len(widths) <= width:
        head = [f"{column:<{room}}" for column, room in zip(columns, widths, strict=True)]
        yield _painted("  ".join([" " * first, *head]).rstrip(), _BOLD, color)
        for way in ways:
            row = [
                _painted(f"{cells[way, column]:<{room}}", paints[way, column], color)
                for column, room in zip(columns, widths, strict=True)
            ]
            yield "  ".join([f"{way.title:<{first}}", *row]).rstrip()
    else:
        for way in ways:
            yield _painted(way.title, _BOLD, color)
            for column in columns:
                yield f"  {column}: {_painted(cells[way, column], paints[way, column], color)}"
    for column in columns:
        yield from _details([results[way, column] for way in ways], column)


def cell(result: Result) -> str:
    """One run in a few words: `0.2 s, exit 0, nothing left`."""
    processes = _count(len(result.processes), "process", "processes")
    files = _count(len(result.files), "file", "files")
    left = [text for text, some in ((processes, result.processes), (files, result.files)) if some]
    what = f"{' and '.join(left)} left" if left else "nothing left"
    if result.untested:
        return f"not tested{f', {what}' if left else ''}"
    if result.status is None:
        who = f"{processes} " if len(result.processes) > 1 else ""
        return f"{who}still running after {result.seconds:.0f} s{f', {files} left' if result.files else ''}"
    return f"{result.seconds:.1f} s, {result.ended}, {what}"


def as_data(results: Results, command: Sequence[str]) -> dict[str, object]:
    """The results as plain data, for JSON."""
    return {
        "command": list(command),
        "clean": all(result.is_clean for result in results.values()),
        "runs": [
            {
                "way": way.name,
                "under_exec": column == UNDER_EXEC,
                "seconds": round(result.seconds, 3),
                "exit_code": _exit_code(result),
                "signal": result.ended if result.status is not None and signal_of(result.status) else None,
                "still_running": result.status is None,
                "processes": result.processes,
                "files": result.files,
                "said_last": result.said,
                "untested": result.untested or None,
                "clean": result.is_clean,
            }
            for (way, column), result in results.items()
        ],
    }


def _exit_code(result: Result) -> int | None:
    return (
        None
        if result.status is None or signal_of(result.status)
        else os.waitstatus_to_exitcode(result.status)
    )


def _details(results: Sequence[Result], column: str) -> Iterator[str]:
    """What was left, listed once for all ways that left the same."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        if not result.is_clean:
            lines = (*result.processes, result.said, result.untested)
            alike = (*map(_without_numbers, lines), bool(result.files))
            groups.setdefault(alike, []).append(result)
    for group in groups.values():
        first = group[0]
        yield f"\n{column}: {', '.join(result.way.title for result in group)}"
        if first.untested:
            yield f"  not tested: {first.untested}"
        yield from (f"  left: {line}" for line in first.processes)
        if first.files:
            more = f" and {len(first.files) - _SHOWN_FILES} more" if len(first.files) > _SHOWN_FILES else ""
            yield f"  left in TMPDIR: {', '.join(first.files[:_SHOWN_FILES])}{more}"
        if first.said and first.said not in first.untested:
            yield f"  it said last: {first.said}"


def _without_numbers(line: str) -> str:
    """Without what differs from run to run: its pid, ports, seconds, and the name of its folder."""
    return re.sub(r"^pid \d+: |(?<=:)\d+\b|\d+\.\d s\b|stoptest-\w+", "", line)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _painted(text: str, paint: str, color: bool) -> str:
    return f"{paint}{text}{_PLAIN}" if color else text
