"""What `--model` means: from its spelling, or from nothing, to a model that can be asked.

Invariants
- Nothing is pretended: what `describe` gives is who answers, and a script says that it is one.
- Who spelled out a model gets that one or an error that says what is missing. Who did not gets the best that is there.
- A key goes to its provider, and to an address that was given with `https:` or is this machine; never over a wire that anybody can read.
- Nothing is fetched unless a person said yes, at a terminal or by `--fetch`.
- Where a key is passed over because its package is missing, that is said.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quiesce._extras import MissingExtra
from quiesce._safe.printed import printed_line
from quiesce.cli.base import say
from quiesce.models import Model, ModelError, WeightsError

from .no_model import NoLanguageModel

if TYPE_CHECKING:
    from rich.console import Console

OPENAI_DEFAULT = "gpt-5"
ANTHROPIC_DEFAULT = "claude-sonnet-4-5"
SPELLINGS = """\
  openai[:NAME]             a model of OpenAI; key in OPENAI_API_KEY
  anthropic[:NAME]          a model of Anthropic; key in ANTHROPIC_API_KEY
  http://HOST:PORT/v1#NAME  any server that speaks OpenAI's wire: Ollama, vLLM, llama.cpp; also openai:NAME@URL
  embedded                  a small one on this machine's CPU, without a key
  scripted                  none: a script that says how to get one"""
"""For the help of commands."""


class UnknownModel(ValueError):
    """What was given to `--model` is no spelling of a model."""


class ModelUnavailable(ModelError):
    """That model cannot be had here; the message says what is missing."""


async def resolve(
    spec: str | None,
    *,
    ask: bool = False,
    fetch: bool = False,
    console: Console | None = None,
) -> Model:
    """The model that `--model` names, ready to answer; without one, the best that is there.

    `ask`: a person at a terminal can be asked whether to fetch something; `fetch`: that is settled. What is shown meanwhile goes to
    `console`, standard error unless given. An embedded model comes open, and its server belongs to the current scope until `close()`.
    """

    async def embedded() -> Model:
        from .fetch import open_embedded

        return await open_embedded(ask=ask, fetch=fetch, console=console)

    spec = (spec or "").strip()
    if not spec:
        return await _best_there_is(embedded)
    kind, colon, rest = spec.partition(":")
    if kind in ("http", "https") and colon:
        url, _, name = spec.partition("#")
        return await _at(url, name)
    if kind == "openai":
        name, at, url = rest.partition("@http")
        return await _at(f"http{url}", name) if at else _openai(name or OPENAI_DEFAULT)
    if kind == "anthropic":
        return _anthropic(rest or ANTHROPIC_DEFAULT)
    if spec == "scripted":
        return NoLanguageModel()
    if spec == "embedded":
        return await _or_unavailable(embedded)
    likely = "anthropic" if spec.startswith("claude") else "openai"
    raise UnknownModel(
        f"{spec!r} names no model: did you mean {likely}:{printed_line(rest or spec)}? A model is spelled\n{SPELLINGS}"
    )


def describe(model: Model) -> str:
    """Who answers, as a prompt shows it."""
    if _is_embedded(model):
        return f"{model.name} (embedded)"
    return model.name


def calls_tools(model: Model) -> bool:
    """Whether it calls tools by itself."""
    return bool(getattr(model, "calls_tools", True))


def note(model: Model) -> str | None:
    """What a person should know before the first question; None if there is nothing to say."""
    if isinstance(model, NoLanguageModel):
        because = f" ({model.why})" if model.why else ""
        return f"No language model answers here{because}: a script does. It says what would help."
    if _is_embedded(model):
        return (
            f"{model.name} is a small language model on this machine's CPU. It writes English, gets much of it wrong, and calls "
            "no tools: use them yourself, with !command."
        )
    return None


def _is_embedded(model: Model) -> bool:
    return type(model).__name__ == "EmbeddedModel" and type(model).__module__.startswith("quiesce.")


# Each kind


async def _best_there_is(embedded: Callable[[], Awaitable[Model]]) -> Model:
    passed_over = list[str]()

    def say_why() -> None:
        for reason in passed_over:
            say(reason)

    for variable, make, name in (
        ("OPENAI_API_KEY", _openai, OPENAI_DEFAULT),
        ("ANTHROPIC_API_KEY", _anthropic, ANTHROPIC_DEFAULT),
    ):
        if os.environ.get(variable):
            try:
                model = make(name)
            except ModelUnavailable as missing:
                passed_over.append(f"{variable} is set, but {missing}")
            else:
                say_why()
                return model
    try:
        model = await _or_unavailable(embedded)
    except ModelUnavailable as missing:
        return NoLanguageModel(f"{'; '.join(passed_over) or 'no key is set'}, and {missing}")
    say_why()
    return model


async def _or_unavailable(embedded: Callable[[], Awaitable[Model]]) -> Model:
    try:
        return await embedded()
    except ModelUnavailable:
        raise
    except (MissingExtra, WeightsError, ModelError) as error:
        raise ModelUnavailable(str(error)) from error


def _openai(name: str) -> Model:
    _check_key("OPENAI_API_KEY", f"openai:{name}")
    return _made("OpenAIModel", name, name=f"openai:{name}")


def _anthropic(name: str) -> Model:
    _check_key("ANTHROPIC_API_KEY", f"anthropic:{name}")
    return _made("AnthropicModel", name, name=f"anthropic:{name}")


async def _at(url: str, name: str) -> Model:
    """A model of a server of the user's."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UnknownModel(f"{url!r} is no address: {error}") from None
    if not host or not url.isprintable() or " " in url:
        raise UnknownModel(f"{url!r} is no address of a server; one is http://localhost:11434/v1#qwen3")
    url = url.rstrip("/")
    key = os.environ.get("OPENAI_API_KEY", "") if parts.scheme == "https" or _is_this_machine(host) else ""
    options = {"base_url": url, "api_key": key or "no-key"}
    name = name or await _first_model(options, url)
    return _made("OpenAIModel", name, name=f"{name} at {parts.netloc.rpartition('@')[2]}", **options)


def _made(kind: str, model: str, **options: Any) -> Model:
    """One of the models on official clients."""
    import quiesce.models

    try:
        made: Model = getattr(quiesce.models, kind)(model, **options)
    except MissingExtra as error:
        raise ModelUnavailable(str(error)) from error
    return made


async def _first_model(options: dict[str, Any], url: str) -> str:
    """What the server calls the first of its models."""
    if find_spec("openai") is None:
        raise ModelUnavailable(
            f"the models of {url} need the package 'openai': pip install 'quiesce[openai]'"
        )
    import openai

    try:
        async with openai.AsyncOpenAI(max_retries=0, timeout=10, **options) as client:
            found = [str(model.id) for model in (await client.models.list()).data]
    except openai.OpenAIError as error:
        raise ModelUnavailable(
            f"{url} does not say which models it has ({error}): write {url}#NAME"
        ) from error
    if not found:
        raise ModelUnavailable(f"{url} has no models: write {url}#NAME if that is wrong")
    return found[0]


def _check_key(variable: str, spec: str) -> None:
    if not os.environ.get(variable):
        raise ModelUnavailable(
            f"{spec} needs a key: set {variable}, or use --model embedded, which needs none", model=spec
        )


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
