"""Stops and leftovers in production monitoring: with OpenTelemetry, or with a function of your own.

- Nothing is active until you enable it, and OpenTelemetry is not imported before that.
- A stop is a span below the span that was current when the stop was requested, from the first signal to the report.
  It is made at the end, with the time and the context of the beginning, so that a stop without a report never
  becomes a span.
- A cancelled scope is neither OK nor an error: the status stays unset, and the attributes say what cancelled it and
  why. An error is a stop because of an error, or one that left something running.
- The counter counts a leftover once, when the grace has run out. If the leftover ends later, a second span says so.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from quiesce import StopReport
from quiesce.kernel.inner import counts_of, is_trouble, listeners

from ._safe.printed import printed, printed_line

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from quiesce.kernel.inner import ScopeCore

__all__ = ["disable", "enable", "on_stop"]


def enable(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Send every stop to OpenTelemetry: one span `quiesce.stop` per stop, and a counter `quiesce.leftovers`.

    ```python
    quiesce.telemetry.enable()      # once, when the program starts; uses the global providers
    ```

    This applies to the whole process, from the next stop on. Calling it again replaces the providers.
    """
    try:
        listener = _Telemetry(tracer_provider, meter_provider)
    except ImportError as missing:
        raise ImportError(
            "quiesce.telemetry.enable() needs OpenTelemetry's API: pip install 'quiesce[telemetry]'"
        ) from missing
    disable()
    listeners.append(listener)


def disable() -> None:
    """Stop sending to OpenTelemetry. Functions added with `on_stop` are still called."""
    listeners[:] = [listener for listener in listeners if not isinstance(listener, _Telemetry)]


def on_stop(told: Callable[[StopReport], object]) -> Callable[[], None]:
    """Call `told` with the report of every stop in the process, and return a function that ends this.

    ```python
    unsubscribe = quiesce.telemetry.on_stop(lambda report: statsd.incr("left", len(report.left)))
    ```

    It is called in the thread of the event loop, so it must not block: when the stop has settled, or when its grace
    has run out and something is left. It is called again when such a leftover ends later. Exceptions that it raises
    are logged.
    """
    if not callable(told):
        raise TypeError(f"on_stop takes a function of a StopReport, not {type(told).__name__}")
    listener = _Function(told)
    listeners.append(listener)

    def unsubscribe() -> None:
        if listener in listeners:
            listeners.remove(listener)

    return unsubscribe


class _Function:
    """A listener that calls a function with each report."""

    def __init__(self, told: Callable[[StopReport], object]) -> None:
        self._callback = told

    def began(self, core: ScopeCore) -> None:
        pass

    def ended(self, core: ScopeCore, report: StopReport | None, *, late: bool) -> None:
        if report is not None:
            self._callback(report)


class _Telemetry:
    """A listener that sends spans and counts to OpenTelemetry."""

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        from opentelemetry import context, metrics, trace

        from . import __version__

        self._trace = trace
        self._current = context.get_current
        self._tracer = trace.get_tracer("quiesce", __version__, tracer_provider)
        self._leftovers = metrics.get_meter("quiesce", __version__, meter_provider).create_counter(
            "quiesce.leftovers",
            unit="{leftover}",
            description="Tasks, threads, processes and other things that a stop could not stop within its grace.",
        )
        # Weak, so that a scope whose stop never ends is not kept alive by its telemetry.
        self._begun: WeakKeyDictionary[ScopeCore, tuple[int, Context]] = WeakKeyDictionary()

    def began(self, core: ScopeCore) -> None:
        self._begun[core] = (time.time_ns(), self._current())

    def ended(self, core: ScopeCore, report: StopReport | None, *, late: bool) -> None:
        begun = self._begun.get(core)
        if report is None:
            self._begun.pop(core, None)
            return
        if not late:
            for left in report.left:
                self._leftovers.add(
                    1, {"quiesce.leftover.kind": left.kind, "quiesce.reason.kind": _kind(report)}
                )
        # A stop that began before telemetry was enabled has no start time, and gets no span.
        if begun is not None:
            self._make_span(report, *begun, late)

    def _make_span(self, report: StopReport, start: int, context: Context, late: bool) -> None:
        span = self._tracer.start_span(
            "quiesce.stop", context, start_time=start, record_exception=False, set_status_on_exception=False
        )
        if span.is_recording():
            span.set_attributes(attributes_of(report))
            if late:
                span.set_attribute("quiesce.late", True)
            for left in report.left:
                span.add_event(
                    "quiesce.leftover",
                    {
                        "kind": left.kind,
                        "name": printed_line(left.name),
                        "made_at": printed_line(left.made_at),
                        "stuck_at": printed_line(left.stuck_at),
                    },
                )
            for error in report.errors:
                # `record_exception` takes message and stack from the error; these attributes replace them by safe
                # text.
                stack = printed("".join(traceback.format_exception(error)))
                span.record_exception(
                    error, {"exception.message": printed_line(error), "exception.stacktrace": stack}
                )
            if is_trouble(report) or _kind(report) == "error":
                description = f"{len(report.left)} left" if report.left else printed_line(report.reason)
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, description))
        span.end()


def attributes_of(report: StopReport) -> dict[str, str | int | float | list[str]]:
    """The attributes of a span for a report."""
    reason = report.reason
    attributes: dict[str, str | int | float | list[str]] = {
        "quiesce.scope": printed_line(report.name),
        "quiesce.reason.kind": _kind(report),
        "quiesce.reason.message": printed_line(reason.message) if reason is not None else "",
        "quiesce.elapsed": report.elapsed,
        "quiesce.left": len(report.left),
    }
    for state, count in counts_of(report).items():
        attributes[f"quiesce.outcomes.{state.replace(' ', '_')}"] = count
    if report.notes:
        attributes["quiesce.notes"] = [printed_line(note) for note in report.notes]
    if report.unseen:
        attributes["quiesce.unseen"] = [printed_line(unseen) for unseen in report.unseen]
    return attributes


def _kind(report: StopReport) -> str:
    return report.reason.kind if report.reason is not None else "none"
