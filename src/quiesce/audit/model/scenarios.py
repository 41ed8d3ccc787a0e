"""Scenarios: functions without arguments that return something async to run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar, overload

from .source_places import name_of
from .stops import Shape

F = TypeVar("F", bound=Callable[..., Any])
OPTIONS = "__quiesce_scenario__"


class BadScenario(Exception):
    """The given object cannot be audited; the message says why and what to do."""


class Scenario:
    """A checked scenario.

    `make()` returns a fresh coroutine, generator or context manager, and `shape` says which of the three.
    """

    def __init__(self, function: Callable[[], Any], *, name: str | None = None) -> None:
        self.make = function
        self.name = name or name_of(function)
        self.shape: Shape = _shape_of(function, self.name)

    async def hold(self, item: int) -> list[Any]:
        """Return a generator after `item` items, or a context manager that has been entered.

        It comes in a list, so that a function which is passed the list can drop the only reference: a plain argument
        would stay referenced by the frame of its caller.
        """
        made = self.make()
        if self.shape == "generator":
            for _ in range(item):
                await made.__anext__()
        elif item:
            await made.__aenter__()
        return [made]

    @property
    def code(self) -> CodeType | None:
        """The code object of the scenario's function; None for a class or another callable."""
        function: Any = self.make
        while isinstance(function, functools.partial):
            function = function.func
        code = getattr(inspect.unwrap(function), "__code__", None)
        return code if isinstance(code, CodeType) else None

    def owns_generator(self, name: str) -> bool:
        """Whether an async generator of this name is the scenario itself, and not one that it uses."""
        return self.shape != "coroutine" and name.rpartition(".")[2] == self.name.rpartition(".")[2]

    def __repr__(self) -> str:
        return f"<Scenario {self.name}, a {self.shape}>"


def _shape_of(function: Any, name: str) -> Shape:
    if inspect.iscoroutine(function) or inspect.isasyncgen(function):
        if inspect.iscoroutine(function):
            function.close()
        raise BadScenario(
            f"{name} was called already: pass the function itself, without (), because each run needs a fresh one"
        )
    if not callable(function):
        raise BadScenario(f"{name} is a {type(function).__name__}, not an async function")
    _check_arguments(function, name)
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    # An instance may have an async `__call__`.
    call = getattr(target, "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(call):
        return "coroutine"
    if inspect.isasyncgenfunction(target) or inspect.isasyncgenfunction(call):
        return "generator"
    # `asynccontextmanager` leaves the generator function behind as `__wrapped__`.
    if inspect.isasyncgenfunction(inspect.unwrap(target)):
        return "context manager"
    if isinstance(target, type) and hasattr(target, "__aenter__") and hasattr(target, "__aexit__"):
        return "context manager"
    if _may_be_async(target):
        return _shape_of_result(function, name)
    raise BadScenario(
        f"{name} is not async: a scenario is an `async def` function, an async generator function, or a function or "
        "class that returns an async context manager"
    )


def _may_be_async(function: Any) -> bool:
    """Whether the return annotation of a plain function names an async type; lambdas have none and pass."""
    if getattr(function, "__name__", "") == "<lambda>":
        return True
    returned = str(getattr(function, "__annotations__", {}).get("return", ""))
    return any(word in returned for word in ("Async", "Coroutine", "Awaitable"))


def _shape_of_result(function: Callable[[], Any], name: str) -> Shape:
    """Call a plain function once to learn the shape of its result, which is never run."""
    made = function()
    if inspect.iscoroutine(made):
        made.close()
        return "coroutine"
    if inspect.isasyncgen(made):
        return "generator"
    if hasattr(made, "__aenter__") and hasattr(made, "__aexit__"):
        return "context manager"
    raise BadScenario(f"{name} is not async: it returned a {type(made).__name__}, which cannot be awaited")


def _check_arguments(function: Callable[..., Any], name: str) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    needed = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise BadScenario(
            f"{name} needs arguments ({', '.join(needed)}), and the audit cannot supply them: "
            "wrap it in an async function without arguments that creates them afresh for each run"
        )


@overload
def scenario(function: F, /) -> F: ...
@overload
def scenario(**options: Any) -> Callable[[F], F]: ...
def scenario(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a scenario, with its options, so that `quiesce audit FILE` finds it.

        from quiesce.audit import scenario

        @scenario(stops="cancel,twice")
        async def sending():
            async with Connection() as connection:
                await connection.send(b"hello")

    The options are those of `audit()`. The function itself stays as it is.
    """

    def mark(found: F) -> F:
        setattr(found, OPTIONS, options)
        return found

    return mark if function is None else mark(function)


def options_of(function: object) -> dict[str, Any] | None:
    """The options given to `@scenario`; None if the function is not marked."""
    options = getattr(function, OPTIONS, None)
    return dict(options) if isinstance(options, dict) else None
