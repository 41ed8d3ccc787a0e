"""What users pass, checked where they pass it: an error names the thing, and says what to write instead.

The checks look for what a run uses, not for our own classes: a user's own model, session or guardrail needs
no base class. Both errors are a `UserError`, and also the error that Python itself would raise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from quiesce.models import ModelSettings

from .errors import UserError


class WrongType(UserError, TypeError):
    """Something of another type was passed."""


class WrongValue(UserError, ValueError):
    """A value of the right type was passed that is not allowed."""


def given(value: object) -> str:
    """What was passed, for an error to name it."""
    if value is None:
        return "None"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', value)}"
    return repr(value[:60]) if isinstance(value, str) else type(value).__name__


def refuse(what: str, must_be: str, value: object, instead: str = "") -> NoReturn:
    """Raise an error about `what`."""
    raise WrongType(f"{what} must be {must_be}, not {given(value)}" + (f": {instead}" if instead else ""))


def has(value: object, *names: str) -> bool:
    """Whether it has all of these attributes. A class whose instances would have them does not count."""
    return not inspect.isclass(value) and all(hasattr(value, name) for name in names)


def check_each(
    whose: str,
    field: str,
    values: Any,
    must_be: str,
    fits: Callable[[Any], bool],
    instead: Callable[[Any], str],
) -> Any:
    """The values, or an error about the first one that does not fit.

    An iterator becomes a list, as the values are looked at more than once.
    """
    # Text and mappings are iterable, and never what was meant.
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        hint = "leave it out" if values is None else f"write {field}=[...]"
        refuse(f"{field} of {whose}", "a list", values, hint)
    if isinstance(values, Iterator):
        values = list(values)
    for value in values:
        if not fits(value):
            refuse(f"each of the {field} of {whose}", must_be, value, instead(value))
    return values


def check_function(what: str, value: object, instead: str = "", *, optional: bool = True) -> None:
    """A function, or None if that is allowed."""
    if not (callable(value) or (value is None and optional)):
        refuse(what, "a function", value, instead)


def check_yes_or_no(what: str, value: object) -> None:
    """Anything that is true or false, except text: "no" would mean yes."""
    if isinstance(value, str):
        refuse(what, "True or False", value)


def check_text(what: str, value: object) -> None:
    """Text, or None."""
    if not (value is None or isinstance(value, str)):
        refuse(what, "a str", value)


def check_one_of(what: str, value: object, *choices: str) -> None:
    """One of these words."""
    if value not in choices:
        raise WrongValue(f"{what} must be {' or '.join(map(repr, choices))}, not {value!r}")


def check_max_turns(max_turns: object) -> None:
    """A number of turns, or None for no limit."""
    # True is an int, and max_turns=True a slip.
    is_number = isinstance(max_turns, int) and not isinstance(max_turns, bool)
    if max_turns is not None and not (is_number and max_turns >= 1):  # type: ignore[operator]
        raise WrongValue(
            f"max_turns must be a whole number from 1 on, or None for no limit, not {max_turns!r}"
        )


def check_model(whose: str, model: Any) -> None:
    """A model, or None."""
    # Its name is not looked at yet: an object that makes an agent in its own `__init__` may not have one.
    if model is None or (has(model, "stream") and callable(model.stream)):
        return
    instead = "a Model has a name, and answers with stream(request)"
    if isinstance(model, str):
        instead = f"write OpenAIModel({model!r}) or AnthropicModel({model!r}), both in quiesce.models"
    elif inspect.isclass(model):
        instead = f"write {model.__name__}(...)"
    refuse(f"the model of {whose}", "a Model", model, instead)


def check_settings(whose: str, settings: Any) -> None:
    """Settings of a model."""
    if isinstance(settings, ModelSettings):
        return
    instead = "write ModelSettings(temperature=0.2), for example"
    if settings is None:
        instead = "leave it out"
    elif isinstance(settings, Mapping):
        instead = f"write ModelSettings({', '.join(f'{name}={value!r}' for name, value in settings.items())})"
    refuse(f"the model_settings of {whose}", "ModelSettings", settings, instead)


def check_session(session: Any) -> None:
    """A session, or None."""
    if session is None or has(session, "get_items", "add_items"):
        return
    instead = "see quiesce.agents.Session for what it has to have"
    if isinstance(session, str):
        instead = f"write SQLiteSession({session!r}, 'chat.db'), or MemorySession({session!r})"
    elif inspect.isclass(session):
        instead = f"write {session.__name__}(...)"
    refuse("session", "a Session", session, instead)


def check_hooks(what: str, hooks: Any, kind: str, first: str, instead_of_other: str) -> None:
    """An object with hooks, or None; `first` is the name of the hook that is called first."""
    if hooks is None or has(hooks, first):
        return
    instead = f"derive from {kind}, and pass an instance"
    if inspect.isclass(hooks):
        instead = f"write {hooks.__name__}()"
    elif has(hooks, "on_llm_start"):  # those of the other kind
        instead = instead_of_other
    refuse(what, f"{kind}", hooks, instead)


def check_run_hooks(hooks: Any) -> None:
    """Hooks for a whole run."""
    check_hooks("hooks", hooks, "RunHooks", "on_agent_start", "AgentHooks are for an agent: Agent(hooks=...)")


def check_run_config(config: Any, kind: type[Any]) -> None:
    """A `RunConfig`, or None."""
    if config is None or isinstance(config, kind):
        return
    instead = "write RunConfig(grace=...), for example"
    if isinstance(config, Mapping):
        instead = f"write RunConfig({', '.join(f'{name}=...' for name in config)})"
    refuse("run_config", "a RunConfig", config, instead)
