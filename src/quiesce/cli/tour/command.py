"""`quiesce tour`: reads the arguments, plays the situations one after the other, and says what came of it."""

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

HUNG_UP = 129
_SIDES: tuple[Side, ...] = ("ordinary", "quiesce")
_EPILOG = """\
examples:
  quiesce tour                     all five, in about sixteen seconds
  quiesce tour --only tool --code  one of them, with the code that is played
  quiesce tour --json | jq .       what was measured

exit codes: 0 with quiesce nothing was left, 1 something was, 2 bad usage, 130 interrupted (143, 129: by SIGTERM, by a
closed terminal)
"""

Results = list[tuple[Situation, dict[Side, Played]]]


def main(words: Sequence[str]) -> int:
    """Run `quiesce tour` with these arguments; the exit code."""
    fill_closed_descriptors()
    try:
        given = _parser().parse_args(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    try:
        if given.list:
            for situation in SITUATIONS:
                print(f"{situation.name:<11} {situation.title} ({situation.seed})")
            return 0
        return _play(given)
    except BrokenPipeError:  # whoever reads has seen enough
        _write_to_nobody()
        return 0
    except OSError as error:
        _write_to_nobody()
        if error.errno == errno.EIO:  # the terminal was closed
            return HUNG_UP
        say(f"quiesce tour: {error_text(error)}")
        return 1


def _write_to_nobody() -> None:
    """The interpreter flushes standard output at its end, and would complain."""
    nobody = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, sys.stdout.fileno())
    os.close(nobody)


def _parser() -> Parser:
    names = [situation.name for situation in SITUATIONS]
    parser = Parser(
        "tour",
        usage="[options]",
        description="Five situations in which agents leak, live: first the ordinary way, then with\nquiesce. It needs no terminal, no input and no network, and leaves nothing behind.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        type=one_of("situation", names),
        help=f"only this one: {', '.join(names)}; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="only say which there are")
    parser.add_argument("--code", action="store_true", help="show the code that is played, too")
    parser.add_argument("--json", action="store_true", help="what was measured, for machines")
    parser.add_argument(
        "--speed", metavar="TIMES", type=_speed, default=1.0, help="play it so many times faster"
    )
    parser.add_argument(
        "--color", choices=COLOR_CHOICES, default="auto", help="auto: on a terminal, unless NO_COLOR is set"
    )
    return parser


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.1 <= speed <= 10:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0.1 to 10")
    return speed


def _play(given: argparse.Namespace) -> int:
    chosen = [situation for situation in SITUATIONS if not given.only or situation.name in given.only]
    for (
        situation
    ) in chosen:  # so that a missing extra is said first, and importing is no part of what is measured
        situation.program("quiesce")
    terminal = detect_terminal(color=given.color)
    show = Silence(terminal) if given.json else Show(terminal)
    results: Results = []
    began = time.monotonic()
    show.open()
    for situation in chosen:
        show.situation(situation, SITUATIONS.index(situation) + 1)
        sides: dict[Side, Played] = {}
        for side in _SIDES:
            show.side(situation, side)
            if given.code:
                show.code(situation.code(side))
            with show.playing(situation, given.speed) as watcher:
                sides[side] = play(situation, side, speed=given.speed, watcher=watcher)
            show.played(situation, side, sides[side], given.speed)
        results.append((situation, sides))
    seconds = time.monotonic() - began
    show.close(results, seconds)
    is_clean = all(sides["quiesce"].is_clean for _, sides in results)
    if given.json:
        print(json.dumps(_as_json(results, seconds, is_clean), indent=2), flush=True)
    return 0 if is_clean else 1


def play(situation: Situation, side: Side, *, speed: float = 1.0, watcher: Watcher | None = None) -> Played:
    """Play one side of a situation: the ordinary way in `asyncio.run`, ours in `quiesce.run`.

    KeyboardInterrupt for Ctrl-C in either, SystemExit with the conventional status for SIGTERM and SIGHUP.
    """
    stage = Stage(speed=speed, watcher=watcher, tidies=side == "ordinary")
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
    """SIGTERM and SIGHUP, too, end what `asyncio.run` plays: by themselves they would leave its process and its folder, and hide the cursor."""
    came: list[int] = []

    def heard(number: int, frame: FrameType | None) -> None:
        if came:  # a terminal that is closed says so more than once, and clean-up must not be cut
            return
        came.append(number)
        ctrl_c = signal.getsignal(signal.SIGINT)
        if not callable(ctrl_c):  # ignored, as in the background of a script
            raise KeyboardInterrupt
        ctrl_c(signal.SIGINT, frame)

    known = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    taken = [number for number in known if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, heard)
    try:
        yield
    except KeyboardInterrupt:
        if came:
            raise SystemExit(128 + came[0]) from None
        raise
    finally:
        for number in taken:
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
                **{side: _played(played) for side, played in sides.items()},
            }
            for situation, sides in results
        ],
    }


def _played(played: Played) -> dict[str, Any]:
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
        "lanes": [_lane(lane) for lane in played.lanes],
    }


def _lane(lane: Lane) -> dict[str, Any]:
    return {
        "kind": lane.kind,
        "name": lane.name,
        "started": _rounded(lane.started),
        "told_to_stop": _rounded(lane.told),
        "ended": _rounded(lane.ended),
        "how": lane.how or "still runs",
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
