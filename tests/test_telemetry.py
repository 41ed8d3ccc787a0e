"""What is seen of a stop from outside: log records with fields, spans, a counter, a function of one's own."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from quiesce import Grace, Reason, Scope, StopReport, contain, own, telemetry
from quiesce.kernel.scope.stop_listeners import listeners
from quiesce.kernel.scope.unseen import note_unseen
from tests.kernel.temperaments import Stubborn
from tests.world import World, asyncio_only

SHORT = Grace(cancel=0.1, terminate=0.1, kill=0.0)


class Watched:
    """What OpenTelemetry has been sent."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracer = self.tracer_provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == "quiesce.stop"]

    @property
    def span(self) -> ReadableSpan:
        (span,) = self.spans
        return span

    @property
    def leftovers(self) -> dict[tuple[object, object], object]:
        """The counter, by the kind of what was left and by the kind of reason."""
        data = self._reader.get_metrics_data()
        counted: dict[tuple[object, object], object] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    assert (metric.name, metric.unit) == ("quiesce.leftovers", "{leftover}")
                    for point in metric.data.data_points:
                        at = point.attributes or {}
                        key = (at["quiesce.leftover.kind"], at["quiesce.reason.kind"])
                        counted[key] = point.value  # type: ignore[union-attr]
        return counted


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    telemetry.enable(made.tracer_provider, made.meter_provider)
    try:
        yield made
    finally:
        telemetry.disable()
        made.tracer_provider.shutdown()
        made.meter_provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return {name.removeprefix("quiesce."): value for name, value in (span.attributes or {}).items()}


@asynccontextmanager
async def resource() -> AsyncIterator[str]:
    yield "value"


async def fail() -> None:
    raise LookupError("no such thing")


# Log records


async def test_a_block_that_leaves_something_logs_a_record_with_fields(
    caplog: pytest.LogCaptureFixture, world: World
) -> None:
    stubborn = Stubborn()
    with caplog.at_level(logging.WARNING, "quiesce"), anyio.move_on_after(0.1):
        async with Scope("crawl", grace=SHORT) as scope:
            scope.spawn(stubborn, name="worker")
            await anyio.sleep(10)
    (record,) = caplog.records
    fields = vars(record)
    assert record.getMessage() == str(scope.report)
    assert fields["quiesce_scope"] == "crawl"
    assert fields["quiesce_reason"] in ("cancelled", "timeout")
    assert 0.1 <= fields["quiesce_elapsed"] <= (0.3 if world.virtual else 10)
    assert fields["quiesce_outcomes"] == {"still running": 1}
    (left,) = fields["quiesce_left"]
    assert (left["kind"], left["name"]) == ("task", "worker")
    assert "test_telemetry.py" in left["made_at"]
    assert left["stuck_at"]
    json.dumps({name: value for name, value in fields.items() if name.startswith("quiesce_")})
    stubborn.let_go()
    await scope.close()


@asyncio_only
async def test_an_owned_block_logs_such_a_record_too(caplog: pytest.LogCaptureFixture) -> None:
    let_go = asyncio.Event()

    @asynccontextmanager
    async def refuses() -> AsyncIterator[None]:
        yield
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass

    with caplog.at_level(logging.WARNING, "quiesce"):
        async with own(refuses(), name="session", grace=SHORT):
            pass
    (record,) = caplog.records
    assert vars(record)["quiesce_scope"] == "session"
    assert [left["name"] for left in vars(record)["quiesce_left"]] == ["session"]
    let_go.set()
    await anyio.sleep(0.01)


# Spans


async def test_a_stop_is_a_span_below_that_of_who_asked_and_cancelled_is_neither_ok_nor_an_error(
    watched: Watched,
) -> None:
    scope = await Scope.open("crawl")
    scope.spawn(anyio.sleep, 100)
    await anyio.sleep(0.01)
    with watched.tracer.start_as_current_span("request") as request:
        await scope.close(reason=Reason("disconnect", "the client has gone"))
    span = watched.span
    assert span.status.status_code is StatusCode.UNSET
    told = attributes(span)
    elapsed = told.pop("elapsed")
    assert isinstance(elapsed, float)
    assert told == {
        "scope": "crawl",
        "reason.kind": "disconnect",
        "reason.message": "the client has gone",
        "left": 0,
        "outcomes.cancelled": 1,
    }
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time
    assert watched.leftovers == {}


async def test_a_leftover_is_an_event_an_error_and_is_counted_once(watched: Watched) -> None:
    stubborn = Stubborn()
    scope = await Scope.open("crawl")
    scope.spawn(stubborn, name="worker")
    await anyio.sleep(0.01)
    await scope.close(deadline=0.1)
    await scope.close(deadline=0.1)
    span = watched.span
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "1 left"
    assert attributes(span)["left"] == 1
    assert attributes(span)["outcomes.still_running"] == 1
    (event,) = span.events
    assert event.name == "quiesce.leftover"
    told = dict(event.attributes or {})
    assert (told["kind"], told["name"]) == ("task", "worker")
    assert "test_telemetry.py" in str(told["made_at"])
    assert watched.leftovers == {("task", "user"): 1}
    stubborn.let_go()
    await scope.close()
    first, second = watched.spans
    assert first is span
    assert attributes(second)["late"] is True
    assert attributes(second)["left"] == 0
    assert second.status.status_code is StatusCode.UNSET
    assert watched.leftovers == {("task", "user"): 1}


async def test_what_could_not_be_looked_at_is_an_attribute_and_no_error(watched: Watched) -> None:
    scope = await Scope.open("crawl")
    note_unseen(scope._opened(), "descendants of process 'sh'", "there is no /proc here")
    report = await scope.close()
    assert not report.clean
    assert watched.span.status.status_code is StatusCode.UNSET
    assert attributes(watched.span)["unseen"] == ("descendants of process 'sh': there is no /proc here",)
    assert attributes(watched.span)["left"] == 0


async def test_a_stop_because_of_an_error_is_an_error_with_the_exception(watched: Watched) -> None:
    with pytest.raises(ExceptionGroup):
        async with Scope("crawl") as scope:
            scope.spawn(fail)
            await anyio.sleep(10)
    span = watched.span
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["reason.kind"] == "error"
    assert [event.name for event in span.events] == ["exception"]
    assert (span.events[0].attributes or {})["exception.type"] == "LookupError"


async def test_what_its_owner_stops_is_in_the_owners_span_and_ordinary_ends_are_no_news(
    watched: Watched,
) -> None:
    async with Scope("ordinary") as ordinary:
        ordinary.spawn(anyio.sleep, 0.01)
    async with own(resource()):
        pass
    outer = await Scope.open("outer")
    inner = await Scope.open("inner", scope=outer)
    held = await own(resource(), scope=inner).open()
    inner.spawn(anyio.sleep, 100)
    await anyio.sleep(0.01)
    assert watched.spans == []
    await outer.close()
    assert [attributes(span)["scope"] for span in watched.spans] == ["outer"]
    assert held.report is None or held.report.clean


@asyncio_only
async def test_a_containment_that_had_to_stop_something_left_nothing_and_is_no_news(watched: Watched) -> None:
    async with contain():
        task = asyncio.create_task(asyncio.sleep(100))
    assert task.cancelled()
    assert watched.leftovers == {}


async def test_a_thread_that_asks_has_no_span_above_unless_it_has_one_itself(watched: Watched) -> None:
    scope = await Scope.open("crawl")
    scope.spawn(anyio.sleep, 100)
    await anyio.sleep(0.01)
    scope.cancel("Esc pressed")
    await scope.close()
    assert watched.span.parent is None
    assert attributes(watched.span)["reason.message"] == "Esc pressed"


# Asking for it, and not


async def test_enabling_again_changes_the_providers_and_disabling_ends_it(watched: Watched) -> None:
    other = Watched()
    telemetry.enable(other.tracer_provider, other.meter_provider)
    await (await Scope.open("one")).close()
    telemetry.disable()
    await (await Scope.open("two")).close()
    assert watched.spans == []
    assert [attributes(span)["scope"] for span in other.spans] == ["one"]
    assert listeners == []


async def test_a_function_of_ones_own_gets_each_report_until_it_is_taken_back() -> None:
    reports: list[StopReport] = []
    unsubscribe = telemetry.on_stop(reports.append)
    async with Scope("ordinary"):
        pass
    scope = await Scope.open("crawl")
    scope.spawn(anyio.sleep, 100)
    await anyio.sleep(0.01)
    report = await scope.close()
    unsubscribe()
    unsubscribe()
    await (await Scope.open("unheard")).close()
    (told,) = reports
    assert str(told) == str(report)
    assert listeners == []


async def test_a_listener_that_fails_harms_no_stop_and_takes_no_error_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(report: StopReport) -> None:
        raise ZeroDivisionError("broken listener")

    unsubscribe = telemetry.on_stop(broken)
    try:
        scope = await Scope.open("crawl", on_error="stop")
        scope.spawn(fail)
        await anyio.sleep(0.01)
        with caplog.at_level(logging.ERROR, "quiesce"):
            report = await scope.close()
    finally:
        unsubscribe()
    assert [type(error) for error in report.errors] == [LookupError]
    assert "broken listener" in caplog.text


async def test_telling_a_listener_is_not_telling_the_one_who_should_have_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unsubscribe = telemetry.on_stop(lambda report: None)
    try:
        scope = await Scope.open("crawl")
        scope.spawn(fail)
        await anyio.sleep(0.01)
        with caplog.at_level(logging.ERROR, "quiesce"):
            del scope
            gc.collect()  # an eager task's error holds the frame that spawned it
            await anyio.sleep(0.01)
    finally:
        unsubscribe()
    assert "failed, and its error was never reported" in caplog.text


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="on_stop takes a function of a StopReport, not int"):
        telemetry.on_stop(3)  # type: ignore[arg-type]


def python(code: str) -> SimpleNamespace:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=20
    )
    return SimpleNamespace(code=done.returncode, text=done.stdout + done.stderr)


def test_opentelemetry_is_not_imported_before_it_is_asked_for() -> None:
    code = "import sys, quiesce.telemetry; quiesce.Scope; print('opentelemetry' in sys.modules)"
    assert python(code).text == "False\n"


def test_without_opentelemetry_it_says_what_to_install_and_nothing_is_enabled() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import quiesce.telemetry\n"
        "try: quiesce.telemetry.enable()\n"
        "except ImportError as error: print(error)\n"
        "from quiesce.kernel.scope.stop_listeners import listeners; print(listeners)"
    )
    assert python(code).text == (
        "quiesce.telemetry.enable() needs OpenTelemetry's API: pip install 'quiesce[telemetry]'\n[]\n"
    )
