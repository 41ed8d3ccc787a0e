"""Spans by the names of OpenAI's Agents SDK: those of OpenTelemetry where that is installed, and nothing elsewhere.

OpenTelemetry has one tracer provider per process, which cannot be replaced: so each of these tests is a program.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from quiesce.agents import RunConfig, Span, Trace, UserError, custom_span, gen_trace_id, trace

_BEFORE = """
import asyncio, json
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exported, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(exported))
otel.set_tracer_provider(provider)

import anyio, quiesce
from quiesce.agents import *
from quiesce.testing import ScriptedModel
def agent(*turns, **options): return Agent(name="assistant", model=ScriptedModel(turns), **options)
"""
_AFTER = """
names = {span.context.span_id: span.name for span in exported.get_finished_spans()}
print(json.dumps([
    {"name": span.name, "below": names.get(span.parent.span_id) if span.parent else None, "status": span.status.status_code.name,
     "why": span.status.description, "attributes": dict(span.attributes)}
    for span in exported.get_finished_spans()
]))
"""


def spans_of(program: str) -> list[dict[str, Any]]:
    """The spans that a program makes, in the order in which they end."""
    code = _BEFORE + textwrap.dedent(program) + _AFTER
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    spans: list[dict[str, Any]] = json.loads(done.stdout)
    return spans


def names_of(spans: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(span["name"], span["below"]) for span in spans]


def test_spans_are_nested_and_have_what_they_were_given() -> None:
    spans = spans_of("""
        with trace("Research", trace_id="trace_1", group_id="ada", metadata={"day": 3, "topic": "cats\\n"}):
            with custom_span("Search", {"terms": ["a", "b"], "first": True}):
                pass
            with custom_span("Write"):
                pass
    """)
    assert names_of(spans) == [("Search", "Research"), ("Write", "Research"), ("Research", None)]
    assert spans[0]["attributes"] == {"quiesce.span.terms": "['a', 'b']", "quiesce.span.first": True}
    assert spans[2]["attributes"] == {
        "quiesce.trace.id": "trace_1",
        "quiesce.trace.group": "ada",
        "quiesce.trace.day": 3,
        "quiesce.trace.topic": "cats⏎",
    }


def test_a_failure_marks_its_span_and_goes_on_and_a_cancellation_does_not() -> None:
    spans = spans_of("""
        async def main():
            try:
                with trace("Fails"):
                    raise LookupError("no such page")
            except LookupError:
                pass
            with anyio.move_on_after(0.01), trace("Cancelled"):
                await anyio.sleep(60)
            with custom_span("Marked") as span:
                span.set_error({"message": "half of it", "data": None})
        asyncio.run(main())
    """)
    assert [(span["name"], span["status"], span["why"]) for span in spans] == [
        ("Fails", "ERROR", "no such page"),
        ("Cancelled", "UNSET", None),
        ("Marked", "ERROR", "half of it"),
    ]


@pytest.mark.parametrize("way", ["run", "streamed", "conversation", "as a tool"])
def test_a_run_with_a_workflow_name_is_a_span_and_says_nothing_of_what_was_said(way: str) -> None:
    how = {
        "run": "await Runner.run(one, 'secret', run_config=config)",
        "streamed": "[event async for event in Runner.run_streamed(one, 'secret', run_config=config).stream_events()]",
        "conversation": "talk = Conversation(one, run_config=config); await talk.asend_message('secret'); await talk.arun(); await talk.close()",
        "as a tool": "await Runner.run(agent(call('t', input='secret'), 'ok', tools=[one.as_tool('t', run_config=config)]), '?')",
    }[way]
    spans = spans_of(f"""
        from quiesce.testing import call
        async def main():
            @function_tool
            async def look() -> str:
                with custom_span("Look"):
                    return "secret"
            one = agent(call("look"), "secret", tools=[look])
            config = RunConfig(workflow_name="Answer", trace_id="trace_1", group_id="ada", trace_metadata={{"day": 3}})
            with custom_span("Around"):
                {how}
        asyncio.run(main())
    """)
    assert names_of(spans) == [("Look", "Answer"), ("Answer", "Around"), ("Around", None)]
    assert spans[1]["attributes"] == {
        "quiesce.trace.id": "trace_1",
        "quiesce.trace.group": "ada",
        "quiesce.trace.day": 3,
    }
    assert "secret" not in str(spans)


def test_a_run_without_a_workflow_name_or_with_tracing_disabled_is_none() -> None:
    spans = spans_of("""
        async def main():
            await Runner.run(agent("Hello"), "Hi")
            await Runner.run(agent("Hello"), "Hi", run_config=RunConfig(workflow_name="Answer", tracing_disabled=True))
        asyncio.run(main())
    """)
    assert spans == []


def test_a_stop_is_told_below_the_span_that_it_happens_in() -> None:
    spans = spans_of("""
        import quiesce.telemetry
        quiesce.telemetry.enable()
        async def main():
            with trace("Work"):
                async with quiesce.Scope("job") as scope:
                    scope.spawn(anyio.sleep, 60)
                    scope.cancel(quiesce.Reason("user", "enough"))
        asyncio.run(main())
    """)
    assert names_of(spans) == [("quiesce.stop", "Work"), ("Work", None)]


def test_tracing_that_is_disabled_makes_no_spans_until_it_is_enabled_again() -> None:
    spans = spans_of("""
        set_tracing_disabled(True)
        with trace("A"), custom_span("B"):
            pass
        set_tracing_disabled(False)
        with trace("C", disabled=True), custom_span("D"):
            pass
        with custom_span("E", disabled=True):
            pass
    """)
    assert names_of(spans) == [("D", None)]


def test_a_span_may_be_started_and_finished_by_hand() -> None:
    spans = spans_of("""
        aside, around = trace("Aside"), trace("Around")
        aside.start()
        around.start(mark_as_current=True)
        around.start()
        with custom_span("Inside"):
            pass
        around.finish(reset_current=True)
        aside.finish()
        aside.finish()
    """)
    assert names_of(spans) == [("Inside", "Around"), ("Around", None), ("Aside", None)]


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk"])
def test_without_opentelemetry_nothing_is_traced_and_nothing_fails(missing: str) -> None:
    code = f"""
import sys; sys.modules[{missing!r}] = None
import asyncio
from quiesce.agents import Agent, Runner, RunConfig, custom_span, trace
from quiesce.testing import ScriptedModel
async def main():
    with trace("Greet") as greeting, custom_span("once") as span:
        span.set_error({{"message": "no"}})
        agent = Agent(name="assistant", model=ScriptedModel(["Hello"]))
        result = await Runner.run(agent, "Hi", run_config=RunConfig(workflow_name="Answer"))
    print(result.final_output, greeting.name)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("Hello Greet\n", "")


def test_using_agents_without_spans_does_not_import_opentelemetry() -> None:
    code = """
import asyncio, sys
from quiesce.agents import *
from quiesce.testing import ScriptedModel
asyncio.run(Runner.run(Agent(name="assistant", model=ScriptedModel(["Hello"])), "Hi"))
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_ids_of_traces_have_the_form_that_openai_gives_them_and_differ() -> None:
    ids = {gen_trace_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"trace_[0-9a-f]{32}", one) for one in ids)
    made = trace("Answer")
    assert isinstance(made, Trace)
    assert re.fullmatch(r"trace_[0-9a-f]{32}", made.trace_id)
    assert repr(custom_span("Look")) == "<Span 'Look'>"
    assert isinstance(custom_span("Look"), Span)


def test_what_is_not_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match="the name of a span must be a str, not int"):
        trace(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="workflow_name of a RunConfig must be a str, not int"):
        RunConfig(workflow_name=3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="tracing_disabled must be True or False, not 'no'"):
        RunConfig(tracing_disabled="no")  # type: ignore[arg-type]
