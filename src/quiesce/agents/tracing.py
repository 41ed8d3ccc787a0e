"""Spans around parts of a program, by the names that they have in OpenAI's Agents SDK; OpenTelemetry is where they go.

- Where opentelemetry is installed, `trace` and `custom_span` are spans of its global tracer provider, or of none if the
  program has not set one up. Where it is not, they do nothing. Neither is an error, and nothing is sent to OpenAI.
- A span is current inside its block: what is started there, and what `quiesce.telemetry` tells of a stop, is below it.
- A span never changes how its block ends. An exception marks it as failed, a cancellation does not.
- No span holds what was said by a user, a model or a tool, unless you pass it as `metadata` or `data`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quiesce._safe.printed import printed_line

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span as OpenTelemetrySpan

__all__ = ["Span", "Trace", "custom_span", "gen_trace_id", "set_tracing_disabled", "trace"]

_switch = {"disabled": False}


class Span:
    """A part of a program: from `start()` to `finish()`, or a `with` block. `trace` and `custom_span` make them."""

    def __init__(self, name: str, attributes: Mapping[str, Any], *, disabled: bool = False) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a span must be a str, not {type(name).__name__}")
        self.name = name
        self._attributes = attributes
        self._disabled = disabled
        self._span: OpenTelemetrySpan | None = None
        self._token: Token[Context] | None = None

    def start(self, mark_as_current: bool = False) -> None:
        """Begin it. With `mark_as_current`, spans that are begun later in this task are below it."""
        if self._disabled or _switch["disabled"] or self._span is not None:
            return
        try:
            from opentelemetry import context
            from opentelemetry import trace as otel
        except ImportError:
            return
        from quiesce import __version__

        tracer = otel.get_tracer("quiesce.agents", __version__)
        self._span = tracer.start_span(self.name)
        if self._span.is_recording():
            for name, value in self._attributes.items():
                self._span.set_attribute(
                    name, value if isinstance(value, (bool, int, float)) else printed_line(value)
                )
        if mark_as_current:
            self._token = context.attach(otel.set_span_in_context(self._span))

    def finish(self, reset_current: bool = False) -> None:
        """End it. With `reset_current`, the span that was current before it is so again."""
        span, token = self._span, self._token
        self._span = self._token = None
        if token is not None and reset_current:
            from opentelemetry import context

            context.detach(token)
        if span is not None:
            span.end()

    def set_error(self, error: Mapping[str, Any] | BaseException) -> None:
        """Mark it as failed. A dict has the `message`, as in the SDK."""
        if self._span is None:
            return
        from opentelemetry.trace import Status, StatusCode

        told = error.get("message", "") if isinstance(error, Mapping) else error
        self._span.set_status(Status(StatusCode.ERROR, printed_line(told)))

    def __enter__(self) -> Self:
        self.start(mark_as_current=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.set_error(error)
        self.finish(reset_current=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class Trace(Span):
    """The span of a whole workflow, with an id that log lines and other programs may use."""

    def __init__(
        self,
        name: str,
        trace_id: str,
        group_id: str | None,
        metadata: Mapping[str, Any] | None,
        *,
        disabled: bool = False,
    ) -> None:
        attributes = {"quiesce.trace.id": trace_id}
        if group_id is not None:
            attributes["quiesce.trace.group"] = group_id
        attributes.update({f"quiesce.trace.{name}": value for name, value in (metadata or {}).items()})
        super().__init__(name, attributes, disabled=disabled)
        self.trace_id = trace_id
        self.group_id = group_id
        self.metadata = metadata


def trace(
    workflow_name: str,
    trace_id: str | None = None,
    group_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    *,
    disabled: bool = False,
) -> Trace:
    """A span for a whole workflow: several runs, perhaps, that belong together.

    ```python
    with trace("Answer a letter", group_id=thread_id):
        outline = await Runner.run(outliner, letter)
        answer = await Runner.run(writer, outline.final_output)
    ```

    It is a span of OpenTelemetry if that is installed and set up, and otherwise nothing. `trace_id`, `group_id` and
    `metadata` are its attributes.
    """
    return Trace(workflow_name, trace_id or gen_trace_id(), group_id, metadata, disabled=disabled)


def custom_span(name: str, data: Mapping[str, Any] | None = None, *, disabled: bool = False) -> Span:
    """A span for a part of a workflow; `data` are its attributes.

    ```python
    with trace("Research"), custom_span("Search the web"):
        ...
    ```
    """
    return Span(
        name, {f"quiesce.span.{key}": value for key, value in (data or {}).items()}, disabled=disabled
    )


def gen_trace_id() -> str:
    """A new id for a trace."""
    return f"trace_{uuid.uuid4().hex}"


def set_tracing_disabled(disabled: bool) -> None:
    """From now on, `trace` and `custom_span` do nothing in this process; with False, they do again."""
    _switch["disabled"] = disabled
