"""Tools: what a model may ask for, and how it is called.

A tool decodes and checks the model's arguments and calls its function: an async one in the current task, a
sync one in a thread (`quiesce.to_thread`) or in a child process that can be killed (`isolation="process"`).
Everything that belongs to a run (timeouts, approval, guardrails, hooks, what becomes of an error) is done by
the run, around `invoke`.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import math
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import msgspec

from quiesce import TokenCancelled, current_token
from quiesce.kernel.inner import call_in_thread, stop_asked_for
from quiesce.models import ToolSpec

from .argument_checks import check_function, check_yes_or_no, has, refuse
from .context import RunContextWrapper, ToolContext
from .errors import UserError
from .guardrails import (
    MaybeAwaitable,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    check_tool_guardrails,
    is_async,
)
from .schema import FunctionSchema, function_schema

if TYPE_CHECKING:
    from .agent import Agent

Isolation: TypeAlias = Literal["task", "thread", "process"]
TimeoutBehavior: TypeAlias = Literal["error_as_result", "raise_exception"]
Invoke: TypeAlias = Callable[[ToolContext[Any], str], Awaitable[Any]]
FailureErrorFunction: TypeAlias = Callable[[RunContextWrapper[Any], Exception], MaybeAwaitable[str]]
NeedsApproval: TypeAlias = (
    bool | Callable[[RunContextWrapper[Any], dict[str, Any], str], MaybeAwaitable[bool]]
)
IsEnabled: TypeAlias = "bool | Callable[[RunContextWrapper[Any], Agent[Any]], MaybeAwaitable[bool]]"

# What OpenAI and Anthropic both accept.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def default_tool_error_function(context: RunContextWrapper[Any], error: Exception) -> str:
    """What the model is told when a tool has failed, unless the tool has a function of its own for that."""
    return f"An error occurred while running the tool: {str(error) or type(error).__name__}"


@dataclasses.dataclass(slots=True, eq=False)
class FunctionTool:
    """A tool, usually made with `function_tool`; or by hand, of a function of a `ToolContext` and the model's
    JSON.

    ```python
    async def answer(context: ToolContext[None], arguments: str) -> str:
        return "42"

    tool = FunctionTool("answer", "Answers everything.", {"type": "object", "properties": {}}, answer)
    ```

    - `invoke(context, arguments)` decodes and checks the arguments (`InvalidToolArguments`), calls the
      function, and returns what it returns or raises what it raises.
    - `timeout`: how many seconds a call may take. `timeout_behavior`: the model is told that it took too long
      (`"error_as_result"`), or the run raises `ToolTimeoutError`.
    - `failure_error_function`: what the model is told when the tool raises; None: the run raises it.
    - `needs_approval`: whether a call must be approved before it is made, or a function that decides that for
      each call.
    - `is_enabled`: whether the model sees the tool at all.
    - `side_effects`: whether it changes anything. If so, the start of a call is recorded before the call is
      made, and the call is never silently repeated.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    invoke: Invoke
    strict: bool = False
    isolation: Isolation = "task"
    timeout: float | None = None
    timeout_behavior: TimeoutBehavior = "error_as_result"
    failure_error_function: FailureErrorFunction | None = default_tool_error_function
    needs_approval: NeedsApproval = False
    is_enabled: IsEnabled = True
    side_effects: bool = True
    tool_input_guardrails: Sequence[ToolInputGuardrail] = ()
    tool_output_guardrails: Sequence[ToolOutputGuardrail] = ()
    function: Callable[..., Any] | None = None
    spec: ToolSpec = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise UserError(
                f"{self.name!r} is not a valid tool name: providers accept 1 to 64 letters, digits, underscores and "
                "hyphens; give name_override"
            )
        if self.timeout is not None and not (
            isinstance(self.timeout, (int, float)) and 0 < self.timeout < math.inf
        ):
            raise UserError(
                f"the timeout of tool {self.name!r} must be a number of seconds over 0, not {self.timeout!r}"
            )
        if self.timeout_behavior not in ("error_as_result", "raise_exception"):
            raise UserError(
                f'the timeout_behavior of tool {self.name!r} must be "error_as_result" or "raise_exception", '
                f"not {self.timeout_behavior!r}"
            )
        this = f"tool {self.name!r}"
        if not isinstance(self.parameters, Mapping):
            refuse(f"the parameters of {this}", "a JSON schema, as a dict", self.parameters)
        check_function(f"invoke of {this}", self.invoke, optional=False)
        check_function(f"the failure_error_function of {this}", self.failure_error_function)
        check_yes_or_no(f"needs_approval of {this}", self.needs_approval)
        check_yes_or_no(f"is_enabled of {this}", self.is_enabled)
        check_yes_or_no(f"side_effects of {this}", self.side_effects)
        self.tool_input_guardrails = check_tool_guardrails(
            this, "tool_input_guardrails", "a ToolInputGuardrail", self.tool_input_guardrails
        )
        self.tool_output_guardrails = check_tool_guardrails(
            this, "tool_output_guardrails", "a ToolOutputGuardrail", self.tool_output_guardrails
        )
        self.spec = ToolSpec(self.name, self.description, self.parameters, self.strict)

    def __repr__(self) -> str:
        return f"<FunctionTool {self.name!r}, {self.isolation}>"


@overload
def function_tool(fn: Callable[..., Any], /) -> FunctionTool: ...
@overload
def function_tool(
    fn: Callable[..., Any],
    /,
    *,
    name_override: str | None = None,
    description_override: str | None = None,
    timeout: float | None = None,
    timeout_behavior: TimeoutBehavior = "error_as_result",
    failure_error_function: FailureErrorFunction | None = default_tool_error_function,
    needs_approval: NeedsApproval = False,
    is_enabled: IsEnabled = True,
    isolation: Isolation | None = None,
    strict_mode: bool | None = None,
    side_effects: bool = True,
    tool_input_guardrails: Sequence[ToolInputGuardrail] | None = None,
    tool_output_guardrails: Sequence[ToolOutputGuardrail] | None = None,
) -> FunctionTool: ...
@overload
def function_tool(
    *,
    name_override: str | None = None,
    description_override: str | None = None,
    timeout: float | None = None,
    timeout_behavior: TimeoutBehavior = "error_as_result",
    failure_error_function: FailureErrorFunction | None = default_tool_error_function,
    needs_approval: NeedsApproval = False,
    is_enabled: IsEnabled = True,
    isolation: Isolation | None = None,
    strict_mode: bool | None = None,
    side_effects: bool = True,
    tool_input_guardrails: Sequence[ToolInputGuardrail] | None = None,
    tool_output_guardrails: Sequence[ToolOutputGuardrail] | None = None,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def function_tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name_override: str | None = None,
    description_override: str | None = None,
    timeout: float | None = None,
    timeout_behavior: TimeoutBehavior = "error_as_result",
    failure_error_function: FailureErrorFunction | None = default_tool_error_function,
    needs_approval: NeedsApproval = False,
    is_enabled: IsEnabled = True,
    isolation: Isolation | None = None,
    strict_mode: bool | None = None,
    side_effects: bool = True,
    tool_input_guardrails: Sequence[ToolInputGuardrail] | None = None,
    tool_output_guardrails: Sequence[ToolOutputGuardrail] | None = None,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a typed function.

    ```python
    @function_tool(timeout=10)
    async def weather(city: str, days: int = 1) -> str:
        \"\"\"Forecast the weather.

        Args:
            city: Where, such as "Paris, France".
            days: How many days ahead.
        \"\"\"
    ```

    The annotations give the schema of its arguments. Its docstring (Google, NumPy or Sphinx style) and
    `Annotated[..., "text"]` give what the model is told. A first parameter annotated `RunContextWrapper` or
    `ToolContext` is given the run's context, and one annotated `CancelToken` the token of the call.

    - `isolation`: an async function runs as a task. A sync one runs in a thread, or with `"process"` in a
      child process, which can be ended even if the function never looks at its token.
    - `strict_mode`: whether the schema is a strict one, which OpenAI holds the model to; None: if possible.
    - The rest is as in `FunctionTool`.
    """
    # Annotations may name classes of the function that the tool is defined in.
    names = sys._getframe(1).f_locals

    def make(function: Callable[..., Any]) -> FunctionTool:
        if not callable(function):
            refuse("what function_tool makes a tool of", "a function", function, _instead_of(function))
        schema = function_schema(
            function,
            name=name_override,
            description=description_override,
            strict=strict_mode,
            local_names=names,
        )
        where = _isolation(function, isolation, schema)
        return FunctionTool(
            name=schema.name,
            description=schema.description,
            parameters=schema.parameters,
            invoke=_INVOKERS[where](function, schema),
            strict=schema.strict,
            isolation=where,
            timeout=timeout,
            timeout_behavior=timeout_behavior,
            failure_error_function=failure_error_function,
            needs_approval=needs_approval,
            is_enabled=is_enabled,
            side_effects=side_effects,
            tool_input_guardrails=() if tool_input_guardrails is None else tool_input_guardrails,
            tool_output_guardrails=() if tool_output_guardrails is None else tool_output_guardrails,
            function=function,
        )

    return make(fn) if fn is not None else make


def _instead_of(value: Any) -> str:
    if isinstance(value, str):
        return f"write @function_tool(name_override={value!r})"
    if isinstance(value, FunctionTool):
        return "it is a tool already"
    if has(value, "as_tool"):
        return "write agent.as_tool()"
    if inspect.iscoroutine(value):
        value.close()  # or Python would also warn that it was never awaited
        return "pass the function itself, not what calling it gives"
    return ""


def _isolation(fn: Callable[..., Any], asked: Isolation | None, schema: FunctionSchema) -> Isolation:
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise UserError(f"tool {schema.name!r} is a generator: a tool returns one value; return a list")
    if asked not in (None, "task", "thread", "process"):
        raise UserError(
            f'the isolation of tool {schema.name!r} must be "task", "thread" or "process", not {asked!r}'
        )
    if is_async(fn):
        if asked not in (None, "task"):
            raise UserError(
                f"tool {schema.name!r} is async and runs as a task, not in a {asked}: write `def` for code that blocks"
            )
        return "task"
    if asked == "task":
        raise UserError(
            f"tool {schema.name!r} is sync and would block the event loop as a task: write `async def`, or leave "
            "isolation out to run it in a thread"
        )
    return asked or "thread"


# How each kind is called


def _in_task(fn: Callable[..., Any], schema: FunctionSchema) -> Invoke:
    # Three variants: most tools are plain, and do without `bind`, which is slower.
    decode = schema.decode
    if schema.is_plain and not schema.takes_context:

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            return await fn(*decode(arguments))

    elif schema.is_plain:

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            return await fn(context, *decode(arguments))

    else:

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            token = current_token() if schema.token_parameter is not None else None
            positional, named = schema.bind(arguments, context, token)
            return await fn(*positional, **named)

    return invoke


def _in_thread(fn: Callable[..., Any], schema: FunctionSchema) -> Invoke:
    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        # Here, and not in the thread: arguments that do not fit must not wait for a thread.
        bound = schema.bind(arguments, context)

        def call() -> Any:
            if schema.token_parameter is None:
                positional, named = bound
            else:  # the token of the thread, which only the thread itself can ask for
                positional, named = schema.bind(arguments, context, current_token())
            try:
                return fn(*positional, **named)
            finally:
                context.at_work = False

        def begin() -> None:
            if (reason := stop_asked_for()) is not None:  # it was stopped while it waited for a thread
                raise TokenCancelled(reason)
            context.waits_for_thread = False

        # Set here and not in the thread, which may take a while to reach its first line. A stop in between
        # must know that the call waits.
        context.at_work = context.waits_for_thread = True
        returned = await call_in_thread(call, (), sys._getframe(), name=schema.name, on_start=begin)
        return await returned if inspect.isawaitable(returned) else returned

    return invoke


def _in_process(fn: Callable[..., Any], schema: FunctionSchema) -> Invoke:
    if schema.takes_context or schema.token_parameter is not None:
        raise UserError(
            f"tool {schema.name!r} runs in a process of its own, which has neither the run's context nor its "
            "token: take plain arguments, or leave isolation out"
        )
    from .tool_process import ProcessFunction

    function = ProcessFunction(fn, schema.name)

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        positional, named = schema.bind(arguments)
        return await function.call(positional, named, context.progress)

    return invoke


_INVOKERS: dict[str, Callable[[Callable[..., Any], FunctionSchema], Invoke]] = {
    "task": _in_task,
    "thread": _in_thread,
    "process": _in_process,
}


# What the model is given


def output_text(value: Any) -> str:
    """The output of a tool as text for the model.

    Text stays as it is, None gives nothing, data becomes JSON, and anything else `str(value)`.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        if isinstance(value, (bytes, bytearray)):
            return value.decode()
        encoded = _encoder.encode(value)
        # A date, for example, becomes a JSON string. As text for the model it needs no quotes.
        return msgspec.json.decode(encoded, type=str) if encoded[:1] == b'"' else encoded.decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _plain(value: Any) -> Any:
    """Turn a part of the output that msgspec does not know into something that it does."""
    dump = getattr(value, "model_dump", None)  # pydantic's
    if dump is not None and not isinstance(value, type):
        return dump(mode="json")
    # Bytes inside of data. Those that are the whole output are decoded as text, if they are text.
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return str(value)


_encoder = msgspec.json.Encoder(enc_hook=_plain)
