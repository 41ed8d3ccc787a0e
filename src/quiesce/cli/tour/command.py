"""`quiesce tour`: parse the arguments, play the situations one after the other, and report the results."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from quiesce.cli import INTERRUPTED
from quiesce.cli.base import (
    COLOR_CHOICES,
    Parser,
    detect_terminal,
    error_text,
    fill_closed_descriptors,
    one_of,
    say,
)
from quiesce.cli.tour.situations import SITUATIONS, Side, Situation

from .show import Show, Silence
from .stage import Lane, Played, Stage, Watcher
from .whole_program import is_possible, stop_whole_program

HUNG_UP = 129
_SIDES: tuple[Side, ...] = ("ordinary", "quiesce")
_EPILOG = """\
examples:
  quiesce tour                     a whole program, then all five, in about half a minute
  quiesce tour -- python app.py    the same, beginning with a program of yours
  quiesce tour --only tool --code  one of them, with its code
  quiesce tour --json | jq .       the measurements

exit codes: 0 quiesce left nothing running, 1 it left something, 2 bad usage, 130 interrupted
(143: by SIGTERM, 129: by a closed terminal)
"""

Results = list[tuple[Situation, dict[Side, Played]]]


def main(words: Sequence[str]) -> int:
    """Run `quiesce tour` with these arguments and return the exit code."""
    fill_closed_descriptors()
    try:
        end = words.index("--") if "--" in words else len(words)
        options = _parser().parse_args(words[:end])
        options.argv = list(words[end + 1 :])
        if options.argv and (options.only or options.json):
            _parser().error("a program is stopped in the first part, which --only and --json leave out")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    try:
        if options.list:
            for situation in SITUATIONS:
                print(f"{situation.name:<11} {situation.title} ({situation.seed})")
            return 0
        return _play(options)
    except BrokenPipeError:  # the reader has seen enough
        _discard_stdout()
        return 0
    except OSError as error:
        _discard_stdout()
        if error.errno == errno.EIO:  # the terminal was closed
            return HUNG_UP
        say(f"quiesce tour: {error_text(error)}")
        return 1


def _discard_stdout() -> None:
    """Redirect standard output to the null device, so that the interpreter's last flush does not fail."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def _parser() -> Parser:
    names = [situation.name for situation in SITUATIONS]
    parser = Parser(
        "tour",
        usage="[options] [-- COMMAND [ARGUMENT ...]]",
        description="A whole program that leaks when it is stopped, yours if you name one, then five situations in\n"
        "which agents leak, live: first the ordinary way, then with quiesce. It needs no terminal, no input and no network, and leaves nothing behind.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        type=one_of("situation", names),
        help=f"play only this situation: {', '.join(names)}; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="list the situations and exit")
    parser.add_argument("--code", action="store_true", help="also show the code of each program")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    parser.add_argument(
        "--speed", metavar="TIMES", type=_speed, default=1.0, help="play this many times faster (0.1 to 10)"
    )
    parser.add_argument(
        "--color",
        choices=COLOR_CHOICES,
        default="auto",
        help="auto: colour on a terminal, unless NO_COLOR is set",
    )
    return parser


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.1 <= speed <= 10:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.1 to 10")
    return speed


def _play(options: argparse.Namespace) -> int:
    chosen = [situation for situation in SITUATIONS if not options.only or situation.name in options.only]
    # Import all programs first, so that a missing extra is reported at once and import time is not measured.
    for situation in chosen:
        situation.program("quiesce")
    terminal = detect_terminal(color=options.color)
    show = Silence(terminal) if options.json else Show(terminal)
    results: Results = []
    began = time.monotonic()
    show.open()
    if not options.only and not options.json and is_possible():
        show.whole_program(options.argv)
        status = stop_whole_program(options.argv, "always" if terminal.color else "never")
        if status not in (0, 1):  # it has said why
            return status
        show.gap()
    show.situations()
    for situation in chosen:
        show.situation(situation, SITUATIONS.index(situation) + 1)
        sides: dict[Side, Played] = {}
        for side in _SIDES:
            show.side(situation, side)
            if options.code:
                show.code(situation.code(side))
            with show.playing(situation, options.speed) as watcher:
                sides[side] = play(situation, side, speed=options.speed, watcher=watcher)
            show.played(situation, side, sides[side], options.speed)
        results.append((situation, sides))
    seconds = time.monotonic() - began
    show.close(results, seconds)
    is_clean = all(sides["quiesce"].is_clean for _, sides in results)
    if options.json:
        print(json.dumps(_as_json(results, seconds, is_clean), indent=2), flush=True)
    return 0 if is_clean else 1


def play(situation: Situation, side: Side, *, speed: float = 1.0, watcher: Watcher | None = None) -> Played:
    """Play one side of a situation: the ordinary way in `asyncio.run`, ours in `quiesce.run`.

    Both raise `KeyboardInterrupt` for Ctrl-C, and `SystemExit` with the conventional status for SIGTERM and SIGHUP.
    """
    stage = Stage(speed=speed, watcher=watcher, tidy=side == "ordinary")
    program = situation.program(side)

    async def on_stage() -> None:
        await stage.play(program)

    if side == "ordinary":
        with _signals_as_ctrl_c():
            asyncio.run(on_stage())
    else:
        from quiesce import Stopped, run

        try:
            run(on_stage)
        except Stopped as stopped:
            if stopped.code != INTERRUPTED:
                raise
            raise KeyboardInterrupt from stopped
    return stage.played


@contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop what `asyncio.run` plays, as Ctrl-C does.

    Their default action would kill the tour, and leave the child process, the temporary folder and a hidden cursor.
    """
    received: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        # A closed terminal sends more than one SIGHUP, and the second must not interrupt the clean-up.
        if received:
            return
        received.append(number)
        ctrl_c = signal.getsignal(signal.SIGINT)
        if not callable(ctrl_c):  # SIGINT is ignored, as for a background job of a script
            raise KeyboardInterrupt
        # The handler of `asyncio.run` cancels the main task, so that the program cleans up before the exception is
        # raised.
        ctrl_c(signal.SIGINT, frame)

    candidates = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    # A signal that is ignored (`nohup`) or handled already stays as it is.
    replaced = [number for number in candidates if signal.getsignal(number) is signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, on_signal)
    try:
        yield
    except KeyboardInterrupt:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _as_json(results: Results, seconds: float, is_clean: bool) -> dict[str, Any]:
    from quiesce import __version__

    return {
        "quiesce": __version__,
        "clean": is_clean,
        "seconds": round(seconds, 3),
        "situations": [
            {
                "name": situation.name,
                "title": situation.title,
                "seed": situation.seed,
                "thread": situation.thread,
                **{side: _played_as_json(played) for side, played in sides.items()},
            }
            for situation, sides in results
        ],
    }


def _played_as_json(played: Played) -> dict[str, Any]:
    return {
        "clean": played.is_clean,
        "raised": played.raised or None,
        "control_is_back": _rounded(played.back),
        "lasted": _rounded(played.lasted),
        "left": [{"kind": left.kind, "name": left.name, "at": left.at or None} for left in played.left],
        "harmed": [lane.name for lane in played.harmed],
        "complaints": played.complaints,
        "since": played.facts,
        "report": None if played.report is None else str(played.report),
        "lanes": [_lane_as_json(lane) for lane in played.lanes],
    }


def _lane_as_json(lane: Lane) -> dict[str, Any]:
    return {
        "kind": lane.kind,
        "name": lane.name,
        "started": _rounded(lane.started),
        "told_to_stop": _rounded(lane.stop_seen),
        "ended": _rounded(lane.ended),
        "how": lane.how or "still runs",
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
