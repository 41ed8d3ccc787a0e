"""The arguments of `quiesce audit`, checked as far as possible before anything is imported.

An option that was not given is None, so that the option of a scenario's `@scenario` applies.
"""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from quiesce.audit.model import PHASES, STOPS, WORLDS, BadToken, parse_token

_DESCRIPTION = """\
Run async code again and again, stop it at another point each time, until every point where it can be stopped has been
used, and show what is left over each time.

a target is
  pkg.mod:scenario         an async function (or async generator function, or async context manager) without arguments
  path/file.py:scenario    the same, by file
  pkg.mod, path/file.py    every scenario in it: marked with @scenario, or named scenario or scenario_...
  path/folder              every scenario in every file below it
"""
_EPILOG = """\
examples:
  quiesce audit my_package.jobs:nightly                 cancel it at every point
  quiesce audit scenarios/ --stops all --html out.html  every scenario there, every kind of stop, with an HTML report
  quiesce audit my_package.jobs:nightly --json | jq .   the findings as JSON

exit codes: 0 clean, 1 findings, 2 broken, not deterministic, unresolved or bad usage, 130 interrupted
"""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with one line that says what is wrong, instead of the whole usage."""
        self.exit(2, f"quiesce audit: error: {message}\n(quiesce audit --help lists the options)\n")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; raises SystemExit for --help and for errors."""
    parser = _parser()
    arguments = parser.parse_args(_without_ambiguity(words))
    if arguments.at is not None and len(arguments.backend or ()) > 1:
        parser.error("--at repeats one run: use it with one --backend")
    if arguments.json == "-" and arguments.list:
        parser.error("--list and --json cannot be used together")
    return arguments


def _without_ambiguity(words: Sequence[str]) -> list[str]:
    """Make `--json TARGET` mean `--json=- TARGET`, unless the next word is a name that ends in .json."""
    # argparse would take the target for the optional value of --json.
    clear: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        is_file = following == "-" or following.endswith(".json")
        clear.append("--json=-" if word == "--json" and not is_file else word)
    return clear


def _parser() -> Parser:
    parser = Parser(
        prog="quiesce audit",
        usage="quiesce audit TARGET... [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("targets", nargs="+", metavar="TARGET", help="what to audit")

    stops = ", ".join(stop.name + "*" * bool(stop.by_default) for stop in STOPS.values())
    what = parser.add_argument_group("what to do")
    what.add_argument(
        "--stops",
        type=_names("stop", [*STOPS, "all"]),
        metavar="NAMES",
        help=f"{stops}, all (* the default ones)",
    )
    what.add_argument("--phases", type=_names("phase", PHASES), metavar="NAMES", help=", ".join(PHASES))
    what.add_argument(
        "--backend", type=_names("backend", WORLDS), action="extend", metavar="NAMES",
        help=f"{', '.join(WORLDS)}; several names run each of them",
    )  # fmt: skip
    what.add_argument(
        "--depth", type=int, choices=(1, 2), help="2: stop it a second time at every point after the first"
    )
    what.add_argument(
        "--seed", type=int, metavar="N", help="change the order in which tasks take their steps"
    )
    what.add_argument(
        "--real-io", action="store_true", default=None, help="allow sockets, processes and threads"
    )
    what.add_argument(
        "--patience",
        type=_positive(float),
        metavar="SECONDS",
        help="how long a connection may be silent before the clock jumps (default 0.05)",
    )
    what.add_argument(
        "--at", type=_token, metavar="TOKEN", help="repeat one run, named by a token in a report"
    )

    checks = parser.add_argument_group("what to check")
    checks.add_argument(
        "--check",
        metavar="PKG.MOD:FUNCTION",
        help="call this after each run; it is a finding if it raises or returns a false value",
    )
    checks.add_argument(
        "--again",
        action="store_true",
        default=None,
        help="check after each stop that it still runs undisturbed",
    )
    checks.add_argument(
        "--ignore", type=_ignore, action="append", metavar="PATTERN=REASON",
        help="findings that do not count, as 'leaked Client._poll*=upstream bug 12'",
    )  # fmt: skip
    checks.add_argument("--baseline", metavar="FILE", help="known findings: only others fail")
    checks.add_argument(
        "--write-baseline",
        metavar="FILE",
        help="write the findings as known, and do not fail because of them",
    )

    budget = parser.add_argument_group("big scenarios")
    budget.add_argument("--dedupe", action="store_true", default=None, help="one point per await chain")
    budget.add_argument(
        "--sample",
        type=_positive(int),
        metavar="N",
        help="at most N points per stop and phase, chosen by --seed",
    )
    budget.add_argument("--time-limit", type=_positive(float), metavar="SECONDS", help="for each sweep")
    budget.add_argument(
        "--run-limit",
        type=_positive(float),
        metavar="SECONDS",
        help="real time for one run (default 60)",
    )

    output = parser.add_argument_group("output")
    output.add_argument(
        "--html", type=_writable, metavar="FILE", help="a report with strips and timelines, in one file"
    )
    output.add_argument(
        "--json",
        type=_writable,
        nargs="?",
        const="-",
        metavar="FILE.json",
        help="a report for programs; without a file, to standard output",
    )
    output.add_argument("--junit", type=_writable, metavar="FILE", help="JUnit XML")
    output.add_argument("--list", action="store_true", help="only list what would be audited")
    output.add_argument("--quiet", action="store_true", help="one line per scenario")
    output.add_argument(
        "--show-output", action="store_true", help="show what the scenario prints (a replay always does)"
    )
    output.add_argument("--no-progress", action="store_true", help="no progress on standard error")
    output.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: on a terminal, unless NO_COLOR is set",
    )
    return parser


def _names(what: str, known: Iterable[str]) -> Callable[[str], list[str]]:
    choices = list(known)

    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names:
            raise argparse.ArgumentTypeError(f"no {what} was named; there are {', '.join(choices)}")
        for name in names:
            if name not in choices:
                close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
                hint = f"did you mean {close[0]}? T" if close else "t"
                raise argparse.ArgumentTypeError(
                    f"there is no {what} {name!r}; {hint}here are {', '.join(choices)}"
                )
        return names

    return read


def _token(text: str) -> str:
    try:
        token = parse_token(text)
    except BadToken as bad:
        raise argparse.ArgumentTypeError(str(bad)) from None
    if token.stop not in STOPS:
        raise argparse.ArgumentTypeError(
            f"the token {text!r} names a stop {token.stop!r}; there are {', '.join(STOPS)}"
        )
    return text


def _ignore(text: str) -> tuple[str, str]:
    pattern, _, reason = text.partition("=")
    if not pattern.strip() or not reason.strip():
        raise argparse.ArgumentTypeError(
            f"{text!r} has no reason: write it as 'PATTERN=why it does not count'"
        )
    return pattern.strip(), reason.strip()


def _positive(kind: type[int | float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = kind(0)
        if not 0 < number < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
        return number

    return read


def _writable(text: str) -> str:
    """Check that a file can be written there: better before the sweep than after it."""
    folder = os.path.dirname(os.path.abspath(text))
    if text != "-" and not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"there is no folder {folder} to write {os.path.basename(text)} in")
    if os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text} is a folder, not a file")
    return text
