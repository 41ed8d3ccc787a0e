"""What `--model` means: how its value, or its absence, becomes a model that can answer.

Invariants
- The user always knows what answers: `describe` names the actual model, and a script says that it is a script.
- A user who names a model gets that model, or an error that says what is missing. A user who names none gets the best
  one available.
- A key is sent to its provider, and to an address given by the user if that uses `https:` or is on this machine;
  never unencrypted over a network.
- Nothing is downloaded unless the user agrees, at a terminal or with `--fetch`.
- If a key is set but cannot be used because its package is missing, the user is told.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quiesce.cli.inner import say
from quiesce.inner import MissingExtra, printed_line
from quiesce.models import Model, ModelError
from quiesce_chat.embedded import WeightsError

from .no_model import NoLanguageModel

if TYPE_CHECKING:
    from rich.console import Console

OPENAI_DEFAULT = "gpt-5"
ANTHROPIC_DEFAULT = "claude-sonnet-4-5"
SPELLINGS = """\
  openai[:NAME]             a model of OpenAI; key in OPENAI_API_KEY
  anthropic[:NAME]          a model of Anthropic; key in ANTHROPIC_API_KEY
  http://HOST:PORT/v1#NAME  any server with an OpenAI-compatible API: Ollama, vLLM, llama.cpp; also openai:NAME@URL
  embedded                  a small model on this machine's CPU, without a key
  scripted                  no model: a script that tells you how to get one"""
"""The values of `--model`, one per line, for error messages."""


class UnknownModel(ValueError):
    """The value of `--model` does not name a model."""


class ModelUnavailable(ModelError):
    """The model cannot be used on this machine; the message says what is missing."""


async def resolve(
    spec: str | None,
    *,
    ask: bool = False,
    fetch: bool = False,
    console: Console | None = None,
) -> Model:
    """Return the model that `--model` names, ready to answer; without a value, the best one available.

    With `ask`, the user may be asked at the terminal whether to download weights; with `fetch`, they are downloaded
    without asking. Progress is shown on `console`, or on standard error. An embedded model is returned open, and its
    server belongs to the current scope until `close()`.
    """

    async def embedded() -> Model:
        from .fetch import open_embedded

        return await open_embedded(ask=ask, fetch=fetch, console=console)

    spec = (spec or "").strip()
    if not spec:
        return await _best_available(embedded)
    kind, colon, rest = spec.partition(":")
    if kind in ("http", "https") and colon:
        url, _, name = spec.partition("#")
        return await _at_address(url, name)
    if kind == "openai":
        # At `@http`, because the name of a model may contain an `@` itself.
        name, at, url = rest.partition("@http")
        return await _at_address(f"http{url}", name) if at else _openai(name or OPENAI_DEFAULT)
    if kind == "anthropic":
        return _anthropic(rest or ANTHROPIC_DEFAULT)
    if spec == "scripted":
        return NoLanguageModel()
    if spec == "embedded":
        return await _or_unavailable(embedded)
    likely = "anthropic" if spec.startswith("claude") else "openai"
    raise UnknownModel(
        f"{spec!r} is not a model: did you mean {likely}:{printed_line(rest or spec)}? Possible values:\n{SPELLINGS}"
    )


def describe(model: Model) -> str:
    """The name of a model, as a prompt shows it."""
    if _is_embedded(model):
        return f"{model.name} (embedded)"
    return model.name


def calls_tools(model: Model) -> bool:
    """Whether the model can call tools."""
    return bool(getattr(model, "calls_tools", True))


def note(model: Model) -> str | None:
    """What the user should know about a model before the first question; None if there is nothing special."""
    if isinstance(model, NoLanguageModel):
        because = f" ({model.why})" if model.why else ""
        return f"There is no language model{because}: a script answers, and tells you how to get one."
    if _is_embedded(model):
        return (
            f"{model.name} is a tiny language model running on your CPU. It writes English, often gets facts wrong "
            "and cannot use tools; run commands yourself with !command."
        )
    return None


def _is_embedded(model: Model) -> bool:
    # By name, because importing the class to compare with would load its module for every other model, too.
    return type(model).__name__ == "EmbeddedModel" and type(model).__module__.startswith("quiesce_chat.")


# Each kind


async def _best_available(embedded: Callable[[], Awaitable[Model]]) -> Model:
    skipped = list[str]()

    def report_skipped() -> None:
        for reason in skipped:
            say(reason)

    for variable, make, name in (
        ("OPENAI_API_KEY", _openai, OPENAI_DEFAULT),
        ("ANTHROPIC_API_KEY", _anthropic, ANTHROPIC_DEFAULT),
    ):
        if os.environ.get(variable):
            try:
                model = make(name)
            except ModelUnavailable as missing:
                skipped.append(f"{variable} is set, but {missing}")
            else:
                report_skipped()
                return model
    try:
        model = await _or_unavailable(embedded)
    except ModelUnavailable as missing:
        # The script itself tells the user what was skipped.
        return NoLanguageModel(f"{'; '.join(skipped) or 'no key is set'}, and {missing}")
    report_skipped()
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
    return _make("OpenAIModel", name, name=f"openai:{name}")


def _anthropic(name: str) -> Model:
    _check_key("ANTHROPIC_API_KEY", f"anthropic:{name}")
    return _make("AnthropicModel", name, name=f"anthropic:{name}")


async def _at_address(url: str, name: str) -> Model:
    """A model on a server of the user's choice; without a name, the first one that the server lists."""
    try:
        parts = urlsplit(url)
        # A bad port raises ValueError only when it is read.
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UnknownModel(f"{url!r} is not a valid address: {error}") from None
    if not host or not url.isprintable() or " " in url:
        raise UnknownModel(
            f"{url!r} is not the address of a server; an example is http://localhost:11434/v1#qwen3"
        )
    url = url.rstrip("/")
    # Over plain http, anyone on the network could read the key.
    key = os.environ.get("OPENAI_API_KEY", "") if parts.scheme == "https" or _is_this_machine(host) else ""
    options = {"base_url": url, "api_key": key or "no-key"}
    name = name or await _first_model(options, url)
    # The name is shown in the prompt, so it must not contain the password of `http://user:password@host`.
    return _make("OpenAIModel", name, name=f"{name} at {parts.netloc.rpartition('@')[2]}", **options)


def _make(kind: str, name_at_provider: str, **options: Any) -> Model:
    """Make a model of `quiesce.models` that uses an official client."""
    import quiesce.models

    try:
        model: Model = getattr(quiesce.models, kind)(name_at_provider, **options)
    except MissingExtra as error:
        raise ModelUnavailable(str(error)) from error
    return model


async def _first_model(options: dict[str, Any], url: str) -> str:
    """The name of the first model that a server lists."""
    if find_spec("openai") is None:
        raise ModelUnavailable(
            f"listing the models of {url} needs the package 'openai': pip install 'quiesce[openai]'"
        )
    import openai

    try:
        async with openai.AsyncOpenAI(max_retries=0, timeout=10, **options) as client:
            found = [str(model.id) for model in (await client.models.list()).data]
    except openai.OpenAIError as error:
        raise ModelUnavailable(
            f"{url} does not list its models ({error}): name one with {url}#NAME"
        ) from error
    if not found:
        raise ModelUnavailable(f"{url} lists no models: if it has one, name it with {url}#NAME")
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
