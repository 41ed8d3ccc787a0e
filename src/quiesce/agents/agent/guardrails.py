"""Guardrails: functions that look at what goes in or comes out, and may stop the run.

A guardrail function is async or sync. A sync one runs in a thread, so that it does not block the event loop.
It never waits for a thread of a tool: forty tools that hang keep no guardrail waiting. A tripwire and any
other error have the same effect: everything that runs in parallel is stopped and drained, and then that very
error is raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from quiesce import to_thread
from quiesce.kernel.inner import current_backend, slots_for
from quiesce.models import Item

from .argument_checks import check_each, check_text, check_yes_or_no, has, refuse

if TYPE_CHECKING:
    from .agent import Agent
    from .context import RunContextWrapper, ToolContext

R = TypeVar("R")
MaybeAwaitable: TypeAlias = Awaitable[R] | R

_ROOM = "guardrails and instructions"  # they have threads of their own, apart from those of tools


@dataclass(slots=True)
class GuardrailFunctionOutput:
    """What a guardrail says: anything about what it found, and whether the run must end."""

    output_info: Any
    tripwire_triggered: bool


@dataclass(slots=True)
class ToolGuardrailFunctionOutput:
    """What a tool's guardrail says: go on, give the model this instead, or end the run."""

    output_info: Any = None
    behavior: Literal["allow", "reject_content", "raise_exception"] = "allow"
    message: str = ""

    @classmethod
    def allow(cls, output_info: Any = None) -> ToolGuardrailFunctionOutput:
        """Go on."""
        return cls(output_info)

    @classmethod
    def reject_content(cls, message: str, output_info: Any = None) -> ToolGuardrailFunctionOutput:
        """Do not call the tool, or do not show its output: the model gets `message` instead."""
        return cls(output_info, "reject_content", message)

    @classmethod
    def raise_exception(cls, output_info: Any = None) -> ToolGuardrailFunctionOutput:
        """End the run."""
        return cls(output_info, "raise_exception")


@dataclass(slots=True)
class ToolInputGuardrailData:
    """What a tool's input guardrail gets: `context` has the tool's name, the call's id and its arguments."""

    context: ToolContext[Any]
    agent: Agent[Any]


@dataclass(slots=True)
class ToolOutputGuardrailData(ToolInputGuardrailData):
    """The same, and what the tool has returned."""

    output: Any = None


@dataclass(slots=True)
class InputGuardrail:
    """Looks at the input of a run, in parallel with the first turn of the model.

    With `run_in_parallel=False` it runs before that turn.
    """

    guardrail_function: Callable[[RunContextWrapper[Any], Agent[Any], str | list[Item]], Any]
    name: str | None = None
    run_in_parallel: bool = True

    def __post_init__(self) -> None:
        _check_guardrail(self, "input_guardrail")

    def get_name(self) -> str:
        """Its name, or that of its function."""
        return self.name or name_of(self.guardrail_function)

    async def run(
        self, context: RunContextWrapper[Any], agent: Agent[Any], said: str | list[Item]
    ) -> InputGuardrailResult:
        """Call it, and check what it returns."""
        output = await call_function(self.guardrail_function, context, agent, said)
        return InputGuardrailResult(self, _checked(output, GuardrailFunctionOutput, self))


@dataclass(slots=True)
class OutputGuardrail:
    """Looks at the final output of a run, before you get it."""

    guardrail_function: Callable[[RunContextWrapper[Any], Agent[Any], Any], Any]
    name: str | None = None

    def __post_init__(self) -> None:
        _check_guardrail(self, "output_guardrail")

    def get_name(self) -> str:
        """Its name, or that of its function."""
        return self.name or name_of(self.guardrail_function)

    async def run(
        self, context: RunContextWrapper[Any], agent: Agent[Any], output: Any
    ) -> OutputGuardrailResult:
        """Call it, and check what it returns."""
        said = await call_function(self.guardrail_function, context, agent, output)
        return OutputGuardrailResult(self, _checked(said, GuardrailFunctionOutput, self), agent, output)


@dataclass(slots=True)
class ToolInputGuardrail:
    """Looks at the arguments of a tool call before the tool gets them."""

    guardrail_function: Callable[[ToolInputGuardrailData], Any]
    name: str | None = None

    def __post_init__(self) -> None:
        _check_guardrail(self, "tool_input_guardrail")

    def get_name(self) -> str:
        """Its name, or that of its function."""
        return self.name or name_of(self.guardrail_function)

    async def run(self, data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        """Call it, and check what it returns."""
        return _checked(await call_function(self.guardrail_function, data), ToolGuardrailFunctionOutput, self)


@dataclass(slots=True)
class ToolOutputGuardrail:
    """Looks at what a tool has returned before the model gets it."""

    guardrail_function: Callable[[ToolOutputGuardrailData], Any]
    name: str | None = None

    def __post_init__(self) -> None:
        _check_guardrail(self, "tool_output_guardrail")

    def get_name(self) -> str:
        """Its name, or that of its function."""
        return self.name or name_of(self.guardrail_function)

    async def run(self, data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
        """Call it, and check what it returns."""
        return _checked(await call_function(self.guardrail_function, data), ToolGuardrailFunctionOutput, self)


@dataclass(slots=True)
class InputGuardrailResult:
    """What an input guardrail has said."""

    guardrail: InputGuardrail
    output: GuardrailFunctionOutput


@dataclass(slots=True)
class OutputGuardrailResult:
    """What an output guardrail has said about which output."""

    guardrail: OutputGuardrail
    output: GuardrailFunctionOutput
    agent: Agent[Any]
    agent_output: Any = field(default=None)


@overload
def input_guardrail(fn: Callable[..., Any], /) -> InputGuardrail: ...
@overload
def input_guardrail(
    *, name: str | None = None, run_in_parallel: bool = True
) -> Callable[[Callable[..., Any]], InputGuardrail]: ...
def input_guardrail(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None, run_in_parallel: bool = True
) -> InputGuardrail | Callable[[Callable[..., Any]], InputGuardrail]:
    """Make an input guardrail of a function of `(context, agent, input)`.

    ```python
    @input_guardrail
    async def on_topic(context, agent, said) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered="weather" not in said)
    ```
    """
    make = partial(InputGuardrail, name=name, run_in_parallel=run_in_parallel)
    return make(fn) if fn is not None else make


@overload
def output_guardrail(fn: Callable[..., Any], /) -> OutputGuardrail: ...
@overload
def output_guardrail(*, name: str | None = None) -> Callable[[Callable[..., Any]], OutputGuardrail]: ...
def output_guardrail(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None
) -> OutputGuardrail | Callable[[Callable[..., Any]], OutputGuardrail]:
    """Make an output guardrail of a function of `(context, agent, output)`."""
    make = partial(OutputGuardrail, name=name)
    return make(fn) if fn is not None else make


@overload
def tool_input_guardrail(fn: Callable[..., Any], /) -> ToolInputGuardrail: ...
@overload
def tool_input_guardrail(
    *, name: str | None = None
) -> Callable[[Callable[..., Any]], ToolInputGuardrail]: ...
def tool_input_guardrail(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None
) -> ToolInputGuardrail | Callable[[Callable[..., Any]], ToolInputGuardrail]:
    """Make a tool's input guardrail of a function of a `ToolInputGuardrailData`."""
    make = partial(ToolInputGuardrail, name=name)
    return make(fn) if fn is not None else make


@overload
def tool_output_guardrail(fn: Callable[..., Any], /) -> ToolOutputGuardrail: ...
@overload
def tool_output_guardrail(
    *, name: str | None = None
) -> Callable[[Callable[..., Any]], ToolOutputGuardrail]: ...
def tool_output_guardrail(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None
) -> ToolOutputGuardrail | Callable[[Callable[..., Any]], ToolOutputGuardrail]:
    """Make a tool's output guardrail of a function of a `ToolOutputGuardrailData`."""
    make = partial(ToolOutputGuardrail, name=name)
    return make(fn) if fn is not None else make


# What users pass


def check_input_guardrails(whose: str, values: Any) -> Any:
    """Input guardrails, or an error that says how to make one of what was passed."""
    instead = partial(_instead_of_guardrail, "input_guardrail")
    return check_each(whose, "input_guardrails", values, "an InputGuardrail", _guards_input, instead)


def check_output_guardrails(whose: str, values: Any) -> Any:
    """Output guardrails, likewise."""
    instead = partial(_instead_of_guardrail, "output_guardrail")
    return check_each(whose, "output_guardrails", values, "an OutputGuardrail", _guards_output, instead)


def check_tool_guardrails(whose: str, field: str, must_be: str, values: Any) -> Any:
    """Guardrails of a tool, likewise."""
    instead = partial(_instead_of_guardrail, field.removesuffix("s"))
    return check_each(whose, field, values, must_be, _guards_tool, instead)


def _guards_input(value: object) -> bool:
    return has(value, "run", "run_in_parallel")


def _guards_output(value: object) -> bool:
    # A tool's guardrail has a `run` too, with other parameters.
    return has(value, "run") and not isinstance(value, (ToolInputGuardrail, ToolOutputGuardrail))


def _guards_tool(value: object) -> bool:
    return has(value, "run") and not isinstance(value, (InputGuardrail, OutputGuardrail))


def _instead_of_guardrail(decorator: str, value: object) -> str:
    for kind, right in _DECORATORS.items():
        if isinstance(value, kind):
            return f"what @{right} makes goes into {right}s"
    if callable(value) and not inspect.isclass(value):
        return f"decorate it with @{decorator}, or write {decorator}({name_of(value)})"
    return f"make one of a function with @{decorator}"


_DECORATORS: dict[type[Any], str] = {
    InputGuardrail: "input_guardrail",
    OutputGuardrail: "output_guardrail",
    ToolInputGuardrail: "tool_input_guardrail",
    ToolOutputGuardrail: "tool_output_guardrail",
}


def _check_guardrail(guardrail: Any, decorator: str) -> None:
    function: Any = guardrail.guardrail_function
    if not callable(function):
        instead = ""
        if isinstance(function, str):
            instead = f"write @{decorator}(name={function!r})"
        elif type(function) in _DECORATORS:
            instead = "it is a guardrail already"
        refuse(f"what {decorator} makes a guardrail of", "a function", function, instead)
    check_text(f"the name of guardrail {name_of(function)!r}", guardrail.name)
    check_yes_or_no(f"run_in_parallel of {name_of(function)!r}", getattr(guardrail, "run_in_parallel", True))


async def call_function(fn: Callable[..., Any], *args: Any) -> Any:
    """Call a user's function: an async one here, a sync one in a thread."""
    if is_async(fn):
        return await fn(*args)
    # A sync function may return something to await.
    returned = await to_thread(fn, *args, limiter=slots_for(_ROOM, current_backend()))
    return await returned if inspect.isawaitable(returned) else returned


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a function, or of the class of an object that is called like one."""
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
        return True
    return isinstance(fn, partial) and is_async(fn.func)


def _checked(output: Any, kind: type[R], guardrail: Any) -> R:
    if not isinstance(output, kind):
        raise TypeError(
            f"guardrail {guardrail.get_name()!r} returned {type(output).__name__}, and must return a {kind.__name__}"
        )
    return output
