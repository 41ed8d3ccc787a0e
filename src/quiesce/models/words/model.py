"""The protocol between a run and a model: a model streams events, and releases everything when its stream is closed.

Invariants of every `Model`
- `stream(request)` is an async generator. Nothing happens before its first item is requested, and its clean-up
  returns the connection no matter what ends it (exhaustion, an error, a cancellation, a second cancellation during
  the clean-up, `aclose()`).
- An answer is a sequence of events that ends with `ResponseDone`. Text arrives as `TextDelta`s; a finished message,
  tool call or piece of reasoning arrives as `ItemDone`. An `ItemDone` with an `AssistantMessage` repeats the text of
  the deltas since the last one.
- `Tokens` may arrive early: if the run is stopped, the usage known at that moment is counted.
- `type` of an event, and `delta` of a piece, are those of OpenAI's Responses API, where programs look for them.
- Errors are those of `quiesce.models`: a `ModelError` says whether a retry may help, and what to do.
- One model serves any number of concurrent runs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from .items import Item


@dataclass(slots=True)
class Usage:
    """Tokens and requests, as reported by the provider.

    `unreported` counts requests that were stopped before the provider had reported their usage.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    unreported: int = 0

    @property
    def total_tokens(self) -> int:
        """The sum of input and output tokens."""
        return self.input_tokens + self.output_tokens

    def add(self, other: Usage) -> None:
        """Add the numbers of `other` to these."""
        self.requests += other.requests
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_input_tokens += other.cached_input_tokens
        self.reasoning_tokens += other.reasoning_tokens
        self.unreported += other.unreported


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it: its name, its description, and a JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The shape that the final answer must have, as a JSON schema."""

    name: str
    schema: Mapping[str, Any]
    strict: bool = True


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Options for calling a model. The provider's default applies to every field that is None.

    `timeout` bounds one call in seconds, from the request to the last event. `max_retries` is how often a call is
    retried if it failed before its first event (a lost connection, a rate limit, an overloaded server). `tool_choice`
    is `"auto"`, `"required"`, `"none"` or the name of a tool. `extra` is sent to the provider unchanged.

    `reasoning` is OpenAI's object or dict of that name, with `effort` and perhaps `summary`; with `reasoning_effort`
    you need not import it. Only OpenAI's APIs know `frequency_penalty`, `presence_penalty`, `verbosity`, `metadata` and
    `store`; they are not sent to others. `extra_body` and `extra_args` are added to `extra`.

    ```python
    Agent(name="poet", model=model, model_settings=ModelSettings(temperature=0.2, timeout=30))
    ```
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    timeout: float | None = None
    max_retries: int | None = None
    extra: Mapping[str, Any] | None = None
    reasoning: Any = None  # an object of the package openai, which is not imported for that, or a dict
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    verbosity: str | None = None
    metadata: Mapping[str, str] | None = None
    store: bool | None = None
    extra_body: InitVar[Mapping[str, Any] | None] = None
    extra_args: InitVar[Mapping[str, Any] | None] = None

    def __post_init__(
        self, extra_body: Mapping[str, Any] | None, extra_args: Mapping[str, Any] | None
    ) -> None:
        for name, value in (("extra_body", extra_body), ("extra_args", extra_args)):
            if value is not None:
                _check_kind(name, value, Mapping, "a dict")
                object.__setattr__(self, "extra", {**(self.extra or {}), **value})
        if self.reasoning is not None:
            self._take_reasoning()
        for name in ("temperature", "top_p", "timeout", "frequency_penalty", "presence_penalty"):
            self._check(name, Real, "a number")
        for name in ("max_tokens", "max_retries"):
            self._check(name, Integral, "a whole number")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(
                f"timeout of ModelSettings must be a number of seconds greater than 0, not {self.timeout!r}"
            )
        if self.max_retries is not None and self.max_retries < 0:
            raise ValueError(f"max_retries of ModelSettings must be 0 or more, not {self.max_retries!r}")
        if isinstance(self.stop, str):
            raise TypeError(f"stop of ModelSettings must be a tuple, not a str: write stop=({self.stop!r},)")
        for name in ("tool_choice", "reasoning_effort", "verbosity"):
            self._check(name, str, "a str")
        for name in ("extra", "metadata"):
            self._check(name, Mapping, "a dict")

    def _check(self, name: str, kind: type[Any], must_be: str) -> None:
        if (value := getattr(self, name)) is not None:
            _check_kind(name, value, kind, must_be)

    def _take_reasoning(self) -> None:
        """Make a dict of `reasoning`, and take its effort for `reasoning_effort`."""
        given = self.reasoning
        if not isinstance(given, Mapping):
            dump = getattr(given, "model_dump", None)  # pydantic's
            given = dump() if dump is not None and not isinstance(given, type) else None
        if not isinstance(given, Mapping):
            raise TypeError(
                f"reasoning of ModelSettings must be a dict or openai's Reasoning, not {self.reasoning!r}: "
                "write reasoning={'effort': 'low'}, or reasoning_effort='low'"
            )
        reasoning = {name: value for name, value in given.items() if value is not None}
        object.__setattr__(self, "reasoning", reasoning)
        if self.reasoning_effort is None:
            object.__setattr__(self, "reasoning_effort", reasoning.get("effort"))

    def resolve(self, override: ModelSettings | None) -> ModelSettings:
        """Return these settings, with every field that `override` sets taken from it."""
        if override is None:
            return self
        changes = {f.name: v for f in fields(override) if (v := getattr(override, f.name)) is not None}
        return replace(self, **changes) if changes else self


def _check_kind(name: str, value: object, kind: type[Any], must_be: str) -> None:
    # A bool is an int to Python, but `timeout=True` is a mistake.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} of ModelSettings must be {must_be}, not {value!r}")


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The input of one call to a model."""

    items: Sequence[Item]
    instructions: str | None = None
    tools: Sequence[ToolSpec] = ()
    output: OutputSpec | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer's text."""

    text: str
    type: ClassVar[Literal["response.output_text.delta"]] = "response.output_text.delta"

    @property
    def delta(self) -> str:
        """The piece, under the name that it has in OpenAI's API."""
        return self.text


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of the model's reasoning."""

    text: str
    type: ClassVar[Literal["response.reasoning_summary_text.delta"]] = "response.reasoning_summary_text.delta"

    @property
    def delta(self) -> str:
        """The piece, under the name that it has in OpenAI's API."""
        return self.text


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a tool call's arguments; every piece carries the tool's `name`."""

    call_id: str
    name: str
    arguments: str
    type: ClassVar[Literal["response.function_call_arguments.delta"]] = (
        "response.function_call_arguments.delta"
    )

    @property
    def delta(self) -> str:
        """The piece, under the name that it has in OpenAI's API."""
        return self.arguments


@dataclass(frozen=True, slots=True)
class Tokens:
    """The usage of this call, as far as the provider has reported it; each event replaces the one before."""

    usage: Usage
    type: ClassVar[Literal["response.in_progress"]] = "response.in_progress"


@dataclass(frozen=True, slots=True)
class ItemDone:
    """A message, a tool call or a piece of reasoning is complete."""

    item: Item
    type: ClassVar[Literal["response.output_item.done"]] = "response.output_item.done"


@dataclass(frozen=True, slots=True)
class ResponseDone:
    """The answer is complete.

    `finish` is `"stop"`, `"tool_calls"`, `"length"`, `"refusal"` or the provider's own word.
    """

    usage: Usage
    finish: str = "stop"
    response_id: str | None = None
    type: ClassVar[Literal["response.completed"]] = "response.completed"


ModelEvent: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | Tokens | ItemDone | ResponseDone


@runtime_checkable
class Model(Protocol):
    """Anything that answers requests with a stream of events; the head of this module lists what it must guarantee.

    ```python
    class Echo:
        name = "echo"

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
            yield ItemDone(AssistantMessage("you said something"))
            yield ResponseDone(Usage(requests=1))
    ```
    """

    @property
    def name(self) -> str:
        """The name of the model in errors and reports."""
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer one request, as an async generator of events that ends with `ResponseDone`."""
        ...
