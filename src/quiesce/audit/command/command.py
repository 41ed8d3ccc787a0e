"""`quiesce audit`: collect the scenarios, audit each on each backend, and report the results.

Standard output has the report, or only the JSON if that goes there; progress and errors go to standard error. A target
that cannot be audited is reported, and the others are audited nevertheless; the exit code is the worst of all.
"""

from __future__ import annotations

import argparse
import inspect
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from quiesce._safe.printed import printed, printed_line
from quiesce.audit.findings import WIDTH, AuditResult, BadBaseline, Baseline, Ignores, Paint, headline, report
from quiesce.audit.model import BadScenario, Limits, Scenario
from quiesce.audit.report import Failure, Outcome, to_json, to_junit
from quiesce.audit.sweep import audit
from quiesce.audit.worlds import Interrupted

from .arguments import parse
from .collect import BadTarget, Collected, collect, find_function
from .progress import Meter, make_meter
from .stdio import Output, Streams

# The options that `@scenario` may have: those of audit(), except the ones that the command itself sets.
_OPTIONS = set(inspect.signature(audit).parameters) - {
    "scenario",
    "progress",
    "timelines",
    "target",
    "at",
    "baseline",
}
# The options that have the same name on the command line.
_PLAIN = (
    "stops",
    "phases",
    "depth",
    "seed",
    "real_io",
    "patience",
    "again",
    "dedupe",
    "sample",
    "time_limit",
)


def main(words: Sequence[str]) -> int:
    """Run `quiesce audit` with these arguments and return the exit code."""
    try:
        arguments = parse(words)
    except SystemExit as exited:
        return exited.code if isinstance(exited.code, int) else 2
    with Streams() as streams, _current_directory_on_path():
        command = _Command(arguments, streams)
        try:
            return command.run()
        except KeyboardInterrupt:
            command.complain("interrupted")
            return 130
        except BrokenPipeError:
            # The reader of the report has closed the pipe, as `head` does.
            return command.outcome.exit_code
        except Exception:
            command.complain(f"this is a bug in quiesce; please report it\n{traceback.format_exc()}")
            return 2


@contextmanager
def _current_directory_on_path() -> Iterator[None]:
    """Make modules in the current directory importable inside the block, as `python -m` does."""
    path_before = list(sys.path)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = path_before


class _Command:
    """One call of the command."""

    def __init__(self, arguments: argparse.Namespace, streams: Streams) -> None:
        self.arguments = arguments
        self.outcome = Outcome(is_adopting=arguments.write_baseline is not None)
        self._out, self._err = streams.out, streams.err
        self._streams = streams
        self._says_text = arguments.json != "-"
        self._color = _wants_color(arguments.color, streams.out)
        self._width = shutil.get_terminal_size((WIDTH, 24)).columns if streams.out.isatty() else WIDTH
        self._meter: Meter = make_meter(
            streams.err,
            wanted=not (arguments.no_progress or arguments.quiet or arguments.at),
            color=_wants_color(arguments.color, streams.err),
        )
        self._known = Baseline()
        self._ignores = Ignores()

    def run(self) -> int:
        arguments = self.arguments
        try:
            if arguments.baseline:
                self._known = Baseline.read(arguments.baseline)
            found = self._collect()
            if arguments.list:
                self._list(found)
            else:
                self._audit_all(found)
                self._write_files()
        except BadBaseline as bad:
            self._fail(arguments.baseline or arguments.write_baseline, str(bad))
        if arguments.list and not self.outcome.failures:
            return 0
        return self.outcome.exit_code

    # What to audit

    def _collect(self) -> list[Collected]:
        with self._streams.lent("shown" if self._says_text else "to stderr"):
            found, bad = collect(self.arguments.targets)
            self._check = self._find_check()
        for each in bad:
            self._fail(each.target, str(each))
        if self.arguments.at is not None and len(found) > 1:
            names = ", ".join(each.target for each in found)
            self._fail(
                found[0].target,
                f"--at repeats one run of one scenario, and these are {len(found)}: {names}",
            )
            return []
        return found

    def _find_check(self) -> Callable[..., Any] | None:
        if self.arguments.check is None:
            return None
        try:
            return find_function(self.arguments.check)
        except BadTarget as bad:
            self._fail(self.arguments.check, f"--check {bad}")
            return None

    def _list(self, found: list[Collected]) -> None:
        for each in found:
            try:
                shape = Scenario(each.function).shape
                options = self._options(each)
            except (BadScenario, BadTarget) as bad:
                self._fail(each.target, str(bad))
                continue
            backends = ", ".join(_backends(options))
            self._say(f"{each.target}  a {shape}, on {backends}")

    # Auditing

    def _audit_all(self, found: list[Collected]) -> None:
        if self.arguments.check is not None and self._check is None:
            return
        for each in found:
            try:
                options = self._options(each)
                backends = _backends(options)
            except BadTarget as bad:
                self._fail(each.target, str(bad))
                continue
            for backend in backends:
                try:
                    result = self._audit(each, backend, options)
                except KeyboardInterrupt as interrupted:
                    self.outcome.is_interrupted = True
                    if isinstance(interrupted, Interrupted) and interrupted.result is not None:
                        self._add(interrupted.result, options)
                    self.complain("interrupted: these are the results so far")
                    return
                if result is not None:
                    for_all = [pattern for pattern, _ in self.arguments.ignore or ()]
                    self._ignores.note(result, own=each.options.get("ignore", {}), for_all=for_all)
                    self._add(result, options)
        self._conclude()

    def _audit(self, each: Collected, backend: str, options: dict[str, Any]) -> AuditResult | None:
        self._meter.begin(f"{each.target} on {backend}")
        try:
            with self._streams.lent(self._output()):
                _check_shape(each)
                return audit(
                    each.function,
                    **{**options, "backend": backend},
                    baseline=self._known.keys_for(each.target, backend),
                    at=self.arguments.at,
                    progress=self._meter.show,
                    timelines=self.arguments.html is not None,
                    target=each.target,
                )
        except (BadScenario, ValueError, ImportError) as bad:
            message = str(bad)
            problem = message if each.target in message else f"{each.target}: {message}"
        finally:
            self._meter.end()
        self._fail(each.target, problem)
        return None

    def _output(self) -> Output:
        if self.arguments.at is None and not self.arguments.show_output:
            return "hidden"
        return "shown" if self._says_text else "to stderr"

    def _options(self, each: Collected) -> dict[str, Any]:
        """The options of the scenario's `@scenario`, overridden by those of the command line."""
        arguments = self.arguments
        options = dict(each.options)
        for name in options:
            if name not in _OPTIONS:
                raise BadTarget(
                    each.target,
                    f"its @scenario has an option {name!r}; there are {', '.join(sorted(_OPTIONS))}",
                )
        for name in (*_PLAIN, "backend"):
            if getattr(arguments, name) is not None:
                options[name] = getattr(arguments, name)
        if self._check is not None:
            options["check"] = self._check
        if arguments.ignore:
            options["ignore"] = {**options.get("ignore", {}), **dict(arguments.ignore)}
        if arguments.run_limit is not None:
            options["limits"] = replace(options.get("limits") or Limits(), run=arguments.run_limit)
        return options

    def _add(self, result: AuditResult, options: dict[str, Any]) -> None:
        words = [result.options] if result.options else []
        if self.arguments.check:
            words.append(f"--check {shlex.quote(self.arguments.check)}")
        if options.get("again"):
            words.append("--again")
        if self.arguments.run_limit:
            words.append(f"--run-limit {self.arguments.run_limit:g}")
        result.options = " ".join(words)
        self.outcome.results.append(result)
        if not self._says_text:
            return
        if self.arguments.quiet:
            reason = f": {result.reason}" if result.reason else ""
            found = (
                f": {len(result.errors)} of {len(result.findings)} findings count" if result.findings else ""
            )
            paint = Paint(self._color)
            self._say(paint.line(headline(result, paint) + (reason or found)))
        else:
            gap = "\n" if len(self.outcome.results) > 1 else ""
            self._say(gap + report(result, width=self._width, color=self._color))

    # After the last audit

    def _conclude(self) -> None:
        """Report what can only be judged over all results: stale ignores, gone baseline entries, and the totals."""
        results = self.outcome.results
        self.outcome.stale_ignores = self._ignores.stale() if not self.arguments.at else []
        self.outcome.gone = [] if self.arguments.at else self._known.gone(results)
        if not self._says_text:
            return
        for pattern in self.outcome.stale_ignores:
            self._say(f"stale: the ignore {pattern!r} matches nothing in any of these audits: remove it")
        for entry in self.outcome.gone:
            self._say(
                printed_line(
                    f"gone: {entry} no longer occurs: remove it from {self.arguments.baseline}, "
                    "or write that file again"
                )
            )
        if len(results) > 1 and not self.arguments.quiet:
            counts = dict.fromkeys((result.verdict for result in results), 0)
            for result in results:
                counts[result.verdict] += 1
            totals = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            self._say(f"\n{len(results)} audits: {totals}")

    def _write_files(self) -> None:
        arguments, outcome = self.arguments, self.outcome
        if arguments.write_baseline and outcome.results and not outcome.is_interrupted:
            self._adopt(arguments.write_baseline)
        if arguments.html and outcome.results:
            from quiesce.audit.html import write_html

            self._write(arguments.html, lambda: write_html(outcome.results, arguments.html))
        if arguments.junit:
            self._write(arguments.junit, lambda: _write_text(arguments.junit, to_junit(outcome)))
        if arguments.json == "-":
            self._out.write(to_json(outcome))
            self._out.flush()
        elif arguments.json:
            self._write(arguments.json, lambda: _write_text(arguments.json, to_json(outcome)))

    def _adopt(self, path: str) -> None:
        before = Baseline.read(path) if os.path.exists(path) else Baseline()
        whole = [result for result in self.outcome.results if result.exit_code < 2]
        known = before.adopt(whole)
        known.write(path)
        count = len(known.entries)
        self.complain(f"wrote {count} known finding{'s' * (count != 1)} to {path}")

    def _write(self, path: str, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            self._fail(path, f"{path} cannot be written: {error.strerror}")

    # Output

    def _say(self, text: str) -> None:
        """Write a line of the report."""
        self._out.write(f"{text}\n")
        self._out.flush()

    def _fail(self, target: str, message: str) -> None:
        """Record an error about a target and write it to standard error."""
        self.outcome.failures.append(Failure(target, message))
        self.complain(f"error: {message}")

    def complain(self, text: str) -> None:
        """Write a message to standard error."""
        self._err.write(f"quiesce audit: {printed(text)}\n")
        self._err.flush()


def _check_shape(each: Collected) -> None:
    """Raise `BadScenario` unless this is a scenario. A plain function is called to see its result, and may fail."""
    try:
        Scenario(each.function)
    except BadScenario:
        raise
    except Exception as error:
        raise BadScenario(f"{each.target}: calling it failed: {type(error).__name__}: {error}") from None


def _backends(options: dict[str, Any]) -> list[str]:
    backend = options.get("backend", "asyncio")
    names = backend.split(",") if isinstance(backend, str) else list(backend)
    return list(dict.fromkeys(name.strip() for name in names))


def _wants_color(choice: str, stream: Any) -> bool:
    if choice == "auto":
        return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return choice == "always"


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
