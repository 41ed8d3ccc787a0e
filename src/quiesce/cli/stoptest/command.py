"""The arguments of `quiesce stoptest`, its progress bar, and its exit status."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Self, TextIO

from quiesce.cli.base import (
    COLOR_CHOICES,
    Parser,
    detect_terminal,
    fill_closed_descriptors,
    one_of,
    say,
    split_command,
)
from quiesce.kernel.inner import become_subreaper, procfs

from .table import DIRECT, UNDER_EXEC, as_data, table
from .trial import NotStarted, Result, Timing, Trial
from .ways import WAYS, Way

_TAKE_VALUES = (
    *("--after", "--ready", "--start-within", "--exit-within", "--patience", "--grace"),
    *("--only", "--skip", "--color"),
)
_NAMES = [way.name for way in WAYS]
#: Set in our environment, and not in the program's: we run under `quiesce exec`.
IS_GUARDED = "QUIESCE_STOPTEST_IS_GUARDED"
_BAR = 16  # characters
_AFTER = 2.0  # seconds from the start of the program until it is stopped
_AFTER_READY = 0.5  # from the line that says that it is ready

_EPILOG = f"""\
The ways: {", ".join(_NAMES)}.

examples:
  quiesce stoptest -- python my_app.py
  quiesce stoptest --ready "Uvicorn running" -- uvicorn app:app --port 8123
  quiesce stoptest --only client --only stdin -- npx my-mcp-server
  quiesce stoptest --json --no-exec -- ./worker > stops.json

At a terminal (Ctrl-C, and when it is closed) the program gets a terminal of its own, otherwise pipes. TMPDIR is a
new folder each time: files that are left in it are named. Under quiesce exec it runs with --stop-on-eof where its
input ends.

exit codes: 0 every stop left nothing; 1 something was left, or did not stop; 2 bad usage, or the program could not be
tested in some way; 130 interrupted"""


def main(words: Sequence[str]) -> int:
    """Run `quiesce stoptest` with these arguments and return the exit code."""
    if os.environ.pop(IS_GUARDED, None) is None and sys.platform.startswith("linux"):
        # Under `quiesce exec` itself: nothing that is being tested outlives us, even if we are killed.
        os.environ[IS_GUARDED] = "1"
        again = [sys.executable, "-m", "quiesce", "stoptest", *words]
        os.execv(sys.executable, [sys.executable, "-m", "quiesce", "exec", "--", *again])
    options_given, argv = split_command(words, _TAKE_VALUES)
    parser = _parser()
    try:
        options = parser.parse_args(options_given)
        if not argv:
            parser.error("there is no command: quiesce stoptest [options] -- COMMAND [ARGUMENT ...]")
        if not sys.platform.startswith("linux"):
            parser.error("it needs Linux, whose processes can become the parents of orphans")
        if why := procfs.unavailable():
            parser.error(f"what is left cannot be seen: {why}")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    fill_closed_descriptors()
    terminal = detect_terminal(color=options.color)
    ways = [way for way in WAYS if way.name in (options.only or _NAMES) and way.name not in options.skip]
    if not ways:
        say("quiesce stoptest: error: --only and --skip leave no way to stop it")
        return 2
    columns = [DIRECT, UNDER_EXEC] if options.exec else [DIRECT]
    after = options.after
    if after is None:
        after = _AFTER if options.ready is None else _AFTER_READY
    timing = Timing(after, options.ready, options.start_within, options.exit_within, options.patience)
    results: dict[tuple[Way, str], Result] = {}
    if not become_subreaper():
        say(
            "quiesce stoptest: what is left cannot be seen: "
            "the system does not let it adopt processes that have lost their parent"
        )
        return 2
    try:
        with _ends_by_exception(), _Progress(sys.stderr, len(ways) * len(columns)) as progress:
            for way in ways:
                for column in columns:
                    command = argv if column is DIRECT else [*_exec(way, options.grace), *argv]
                    step = progress.step(f"{way.title}, {column}")
                    results[way, column] = _in_vain(way, results) or Trial(command, way, timing).run(
                        step, os.environ
                    )
    except NotStarted as failure:
        say(f"quiesce stoptest: {failure}")
        return 2
    if all(result.untested for result in results.values()):
        for reason, result in {result.untested: result for result in results.values()}.items():
            say("\n  left: ".join([f"quiesce stoptest: {reason}", *result.processes]))
        return 2
    if options.json:
        shown = json.dumps(as_data(results, argv), indent=2)
    else:
        shown = "\n".join(table(results, columns, width=terminal.width, color=terminal.color))
    try:
        print(shown, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try again when it exits
        say(f"quiesce stoptest: the results could not be written: {error.strerror}")
        return 2
    if any(result.has_left or result.status is None for result in results.values() if not result.untested):
        return 1
    return 2 if any(result.untested for result in results.values()) else 0


def _in_vain(way: Way, results: Mapping[tuple[Way, str], Result]) -> Result | None:
    """If the program did not run at such an input and output before: what came of that."""
    before = [result for result in results.values() if result.way.at_terminal == way.at_terminal]
    if not before or not all(result.untested for result in before):
        return None
    return replace(before[0], way=way)


def _exec(way: Way, grace: float) -> list[str]:
    end = ["--stop-on-eof"] if way.ends_input else []
    return [sys.executable, "-m", "quiesce", "exec", "--grace", f"{grace:g}", *end, "--"]


@contextmanager
def _ends_by_exception() -> Iterator[None]:
    """SIGTERM and a hang-up end us by an exception, as Ctrl-C does: what was started has to be ended."""

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Progress:
    """A line on a terminal that says how far it is; nothing elsewhere."""

    def __init__(self, stream: TextIO, steps: int) -> None:
        self._stream = stream if stream.isatty() else None
        self._steps = steps
        self._done = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def step(self, title: str) -> _Step:
        """Begin the next step."""
        self._done += 1
        return _Step(self, title)

    def show(self, text: str) -> None:
        if self._stream is None:
            return
        filled = _BAR * self._done // self._steps
        bar = f"[{'#' * filled}{'-' * (_BAR - filled)}] {self._done + 1}/{self._steps}"
        self._stream.write(f"\r\x1b[K{bar} {text}"[: detect_terminal(self._stream).width + 3])
        self._stream.flush()


class _Step:
    def __init__(self, progress: _Progress, title: str) -> None:
        self._progress = progress
        self._title = title

    def __call__(self, doing: str) -> None:
        self._progress.show(f"{self._title}: {doing}")


def _parser() -> Parser:
    parser = Parser(
        "stoptest",
        usage="[options] -- COMMAND [ARGUMENT ...]",
        description="Start a program again and again, stop it in another way each time, and show what it leaves:\n"
        "as it is, and under quiesce exec.",
        epilog=_EPILOG,
    )

    def seconds(name: str, default: float, text: str) -> None:
        parser.add_argument(
            name, metavar="SECONDS", type=_seconds, default=default, help=f"{text} (default: {default:g})"
        )

    parser.add_argument(
        "--after",
        metavar="SECONDS",
        type=_seconds,
        help=f"when to stop it, from its start, or from the line that says it is ready (default: {_AFTER:g}, "
        f"or {_AFTER_READY:g})",
    )
    parser.add_argument(
        "--ready",
        metavar="REGEX",
        type=_pattern,
        help="first wait for a line of its output that matches this",
    )
    seconds("--start-within", 30.0, "how long to wait for such a line")
    seconds("--exit-within", 10.0, "how long it may take to exit before it counts as still running")
    seconds("--patience", 3.0, "how long its processes may live on before they count as left")
    seconds("--grace", 2.0, "the grace of quiesce exec")
    parser.add_argument(
        "--only",
        metavar="WAY",
        type=one_of("way", _NAMES),
        action="append",
        default=[],
        help="stop it only in this way; may be repeated",
    )
    parser.add_argument(
        "--skip",
        metavar="WAY",
        type=one_of("way", _NAMES),
        action="append",
        default=[],
        help="do not stop it in this way; may be repeated",
    )
    parser.add_argument("--no-exec", dest="exec", action="store_false", help="only as it is")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--color", choices=COLOR_CHOICES, default="auto", help="colour the table (default: at a terminal)"
    )
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, such as 10 or 0.5")
    return value


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
