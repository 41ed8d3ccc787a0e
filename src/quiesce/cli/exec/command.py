"""The arguments of `quiesce exec`, its report, and its exit status."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from quiesce.cli.base import Parser, split_command
from quiesce.kernel.inner import exit_like

from .front import STOPPING, Front, NotStarted
from .launching import NOT_EXECUTABLE, NOT_FOUND

if TYPE_CHECKING:
    from .report import Report

FAILED = 125  # our own failure, as with `env`, `timeout` and `nohup`
GRACE = 5.0
_READ_WITHIN = 1000  # milliseconds
_TAKE_VALUES = ("--grace", "--report", "--forward")

_EPILOG = """\
examples:
  quiesce exec -- npm run dev
  quiesce exec --grace 20 -- uvicorn app:app --workers 4
  "command": "quiesce", "args": ["exec", "--stop-on-eof", "--", "npx", "my-mcp-server"]      in an mcp.json
  ENTRYPOINT ["quiesce", "exec", "--"]                                                       in a Dockerfile

A stop begins with SIGTERM, SIGINT or SIGHUP, which the command gets, with the third Ctrl-C in a row, or with the
death of quiesce itself. A second signal halves what is left of the grace, a third kills everything at once. Other
signals are passed on.

The exit status is the command's: its exit code, or the signal that ended it. Otherwise: 125 quiesce exec itself
failed, 126 the command cannot be executed, 127 there is no such command."""


def main(words: Sequence[str]) -> int:
    """Run the command. Does not return if it could be started: the process ends as the command did."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # as the command, if it comes before the command has started
    options_given, argv = split_command(words, _TAKE_VALUES)
    try:
        options = _parser().parse_args(options_given)
    except SystemExit as ended:
        return FAILED if ended.code else 0
    if problem := _problem(argv, options):
        _say(f"error: {problem}\n(quiesce exec --help lists the options)")
        return FAILED
    try:
        return _run(argv, options)
    except Exception as error:
        # Not the status of the command. If it was started, its guard stops it now.
        if not isinstance(error, OSError):
            sys.excepthook(type(error), error, error.__traceback__)
        _say(f"failed: {error}")
        return FAILED


def _run(argv: Sequence[str], options: argparse.Namespace) -> int:
    front = Front(
        argv,
        grace=options.grace,
        guarded=options.guard,
        stop_on_eof=options.stop_on_eof,
        forwarded=options.forward,
    )
    try:
        front.run()
    except NotStarted as failure:
        status, text = _explain(argv, failure)
        _say(text)
        _write(options.report, argv, front, text, status)
        return status
    return _finish(front, argv, options.report)


def _finish(front: Front, argv: Sequence[str], report: Report | None) -> NoReturn:
    if front.left:
        listed = "; ".join(f"{proc.describe()} (state {proc.state})" for proc in front.left)
        number = f"{len(front.left)} process{'es are' if len(front.left) > 1 else ' is'}"
        _say(f"{number} still running after {front.seconds:.1f} s, in spite of SIGKILL: {listed}")
    if front.unseen:
        _say(f"something may be left: {front.unseen}")
    _write(report, argv, front)
    exit_like(signal.SIGKILL if front.status is None else front.status)


def _write(
    report: Report | None, argv: Sequence[str], front: Front, problem: str = "", code: int | None = None
) -> None:
    if report is None:
        return
    try:
        report.write(argv, front, problem, code)
    except OSError as failure:
        _say(f"the report could not be written to {report.path}: {failure.strerror}")


def _explain(argv: Sequence[str], failure: NotStarted) -> tuple[int, str]:
    """The exit status if nothing was started, and why."""
    if not failure.number:
        return FAILED, "the guard was killed before it had started the command"
    # Imported here: a command that can be started should not wait for it.
    from quiesce.cli.base import error_text
    from quiesce.kernel.inner import explain_failed_start

    error = OSError(failure.number, os.strerror(failure.number))
    if failure.is_ours:
        return FAILED, f"no process can be started here: {error.strerror}"
    text = error_text(explain_failed_start(error, argv[0], None, os.environ.get("PATH"), None).args[1])
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE, text


def _problem(argv: Sequence[str], options: argparse.Namespace) -> str:
    if not sys.platform.startswith("linux"):
        return "it needs Linux, whose processes can become the parents of orphans"
    if not argv or not argv[0]:
        return "there is no command: quiesce exec [options] -- COMMAND [ARGUMENT ...]"
    return ""


def _parser() -> Parser:
    parser = Parser(
        "exec",
        usage="[options] -- COMMAND [ARGUMENT ...]",
        description="Run a command. When it ends, or this program does, however it ends, all processes that the command\n"
        "has started end, too.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=_seconds,
        default=GRACE,
        help="how long a stop may take until everything left is killed (default: %(default)g)",
    )
    parser.add_argument(
        "--stop-on-eof",
        action="store_true",
        help="also stop when the other end of standard input is closed: the client has disconnected, or was killed",
    )
    parser.add_argument(
        "--report", metavar="FILE", type=_report, help="write what the stop did to this file, as JSON"
    )
    parser.add_argument(
        "--forward",
        metavar="SIGNAL",
        type=_stop_signal,
        action="append",
        default=[],
        help="pass SIGINT, SIGTERM or SIGHUP on without stopping: HUP for a daemon that reloads on it",
    )
    parser.add_argument(
        "--no-guard",
        dest="guard",
        action="store_false",
        help="start no guard process: if quiesce itself is killed with SIGKILL, the command runs on",
    )
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, such as 10 or 0.5")
    return seconds


def _report(text: str) -> Report:
    from .report import Report

    try:
        return Report(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from None


def _stop_signal(text: str) -> int:
    names = {number.name.removeprefix("SIG"): int(number) for number in STOPPING}
    number = names.get(text.upper().removeprefix("SIG"))
    if number is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one of {', '.join(names)}; all other signals are passed on anyway"
        )
    return number


def _say(text: str) -> None:
    if sys.stderr is None:  # `print` would take standard output instead
        return
    from quiesce.cli.base import say

    poll = select.poll()
    poll.register(2, select.POLLOUT)
    if poll.poll(_READ_WITHIN):  # otherwise nobody reads it, and we would never exit
        try:
            say(f"quiesce exec: {text}")
        except OSError:  # its reader has exited, or the disk is full
            sys.stderr = None  # or Python would try again at its end, and exit with a status of its own
