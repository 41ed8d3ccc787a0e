"""What the official clients raise, in the words of `quiesce.models`, with what to do about it.

The clients of OpenAI and Anthropic are made by the same generator, and so are their errors: they are told apart by their names and
attributes, and neither package has to be imported for that. What the HTTP library raises under them, while a stream is read, is
told apart the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quiesce.models.words import (
    ModelAuthenticationError,
    ModelBehaviorError,
    ModelConnectionError,
    ModelError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelRequestError,
    ModelTimeoutError,
)

from .retry import retry_after

LONGEST_QUOTE = 400
_TOO_LONG = ("context_length_exceeded", "maximum context length", "prompt is too long", "context window")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Who is asked, for the text of errors. `missing_key` is a part of what its client says when it has no key."""

    name: str
    provider: str
    model: str
    url: str
    key_variable: str
    missing_key: tuple[str, ...] = ()


def translate(error: Exception, at: Endpoint) -> ModelError:
    """The error to raise for this one. The caller makes that its cause."""
    if isinstance(error, ModelError):
        return error
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        response = getattr(error, "response", None)
        headers = getattr(response, "headers", None) or {}
        return of_status(
            status, body_message(getattr(error, "body", None)) or str(error), at, headers, body=error
        )
    if any(part in str(error) for part in at.missing_key):
        return ModelAuthenticationError(
            f"model {at.name!r} has no key for {at.provider}: set {at.key_variable}, or pass api_key=. "
            "(A local server takes any text.)",
            model=at.name,
        )
    if "PoolTimeout" in _names_behind(error):
        return ModelConnectionError(
            f"model {at.name!r}: all connections of its HTTP client are in use, and none became free in time: "
            "allow more in its limits, or make fewer calls at a time",
            model=at.name,
        )
    if "ReadTimeout" in _names_behind(error):
        return ModelTimeoutError(
            f"model {at.name!r}: {at.url} sent nothing for longer than its HTTP client waits: "
            "give the client a longer timeout",
            model=at.name,
        )
    if "ConnectError" in _names_behind(error) or "ConnectTimeout" in _names_behind(error):
        return ModelConnectionError(
            f"model {at.name!r}: cannot connect to {at.url} ({_root(error)}): "
            "is the server running, and is base_url its address?",
            model=at.name,
        )
    if kinds & {"APIConnectionError", "TransportError", "RequestError", "StreamError"} or isinstance(
        error, OSError
    ):
        return ModelConnectionError(
            f"model {at.name!r}: the connection to {at.url} broke ({_root(error)}): try again",
            model=at.name,
        )
    return ModelError(
        f"model {at.name!r}: the client of {at.provider} failed: {type(error).__name__}: {_quote(str(error))}",
        model=at.name,
    )


def of_status(
    status: int, said: str, at: Endpoint, headers: Mapping[str, str], *, body: object = None
) -> ModelError:
    """The error of an HTTP status."""
    said = _quote(said)
    make: type[ModelError]
    if status == 401:
        make, advice = (
            ModelAuthenticationError,
            f"the key is missing or wrong: set {at.key_variable}, or pass api_key=",
        )
    elif status == 403:
        make, advice = ModelAuthenticationError, "the key is not allowed to do this"
    elif status == 404:
        make, advice = (
            ModelNotFoundError,
            f"is {at.model!r} the name of a model there, and base_url {at.url!r} right?",
        )
    elif status == 429 and _is_out_of_quota(said, body):
        make, advice = ModelRateLimitError, "the account has no credit left"
    elif status == 429:
        make, advice = ModelRateLimitError, "wait, or make fewer calls at a time"
    elif status in (408, 409) or status >= 500:
        make, advice = ModelOverloadedError, "the provider has failed: try again later"
    elif status == 413 or any(sign in said.lower() for sign in _TOO_LONG):
        make, advice = ModelRequestError, "the conversation is too long: send less of it"
    elif status == 400 and "stream_options" in said:
        make, advice = (
            ModelRequestError,
            "this server does not know stream_options: OpenAIModel(..., include_usage=False)",
        )
    else:
        make, advice = ModelRequestError, "the request is wrong as it is: trying again does not help"
    wait = retry_after(headers)
    if wait is not None and make in (ModelRateLimitError, ModelOverloadedError):
        advice += f" (it asks to wait {wait:g} s)"
    error = make(
        f"model {at.name!r}: {at.provider} answered {status}: {said} - {advice}",
        model=at.name,
        status=status,
        retry_after=wait,
        request_id=headers.get("x-request-id") or headers.get("request-id"),
    )
    if headers.get("x-should-retry") == "false" or (status == 429 and _is_out_of_quota(said, body)):
        error.retryable = False
    return error


_STATUS_OF_KIND = {
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "overloaded_error": 529,
    "server_overloaded": 529,
    "server_error": 500,
    "api_error": 500,
    "internal_server_error": 500,
    "timeout_error": 504,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
}


def of_event(error: object, at: Endpoint) -> ModelError:
    """The error that a provider tells of inside a stream that has begun well."""
    said = body_message(error) or "it did not say what"
    fields = error if isinstance(error, Mapping) else {}
    status = next((code for key in ("code", "status") if isinstance(code := fields.get(key), int)), None)
    if status is None or not 400 <= status < 600:
        kinds = (fields.get("code"), fields.get("type"))
        status = next((_STATUS_OF_KIND[kind] for kind in kinds if kind in _STATUS_OF_KIND), None)
    if status is not None:
        return of_status(status, said, at, {}, body=error)
    return ModelOverloadedError(
        f"model {at.name!r}: {at.provider} failed in the middle of its answer: {_quote(said)} - try again",
        model=at.name,
    )


def ended_early(at: Endpoint) -> ModelConnectionError:
    """The stream came to its end, the answer did not."""
    return ModelConnectionError(
        f"model {at.name!r}: {at.url} ended its stream before the answer was complete: try again",
        model=at.name,
    )


def not_a_stream(at: Endpoint, content_type: str, head: str) -> ModelBehaviorError:
    """It answered, but not with events."""
    return ModelBehaviorError(
        f"model {at.name!r}: {at.url} did not answer with a stream of events but with "
        f"{content_type or 'something else'}: {_quote(head) or '(nothing)'} - does this server stream, and is base_url right?",
        model=at.name,
    )


def garbage(at: Endpoint, text: str) -> ModelBehaviorError:
    """An event that is not what its API sends."""
    return ModelBehaviorError(
        f"model {at.name!r}: {at.url} sent an event that cannot be read: {_quote(text)}", model=at.name
    )


def body_message(body: object) -> str:
    """What the body of an error says, in any of the shapes that servers have for it."""
    if isinstance(body, str):
        return body
    if isinstance(body, Mapping):
        for key in ("message", "error", "detail"):
            if body.get(key):
                return body_message(body[key])
    return "" if body is None else str(body)


def _is_out_of_quota(said: str, body: object) -> bool:
    code = body.get("code") if isinstance(body, Mapping) else getattr(body, "code", None)
    return code == "insufficient_quota" or "insufficient_quota" in said


def _names_behind(error: BaseException) -> set[str]:
    """The kinds of this error and of those that caused it."""
    names: set[str] = set()
    link: BaseException | None = error
    for _ in range(6):
        if link is None:
            break
        names |= {kind.__name__ for kind in type(link).__mro__}
        link = link.__context__ if link.__cause__ is None else link.__cause__
    return names


def _root(error: BaseException) -> str:
    """The innermost cause that says something."""
    said = str(error) or type(error).__name__
    link: BaseException | None = error
    for _ in range(6):
        link = link.__cause__ if link is not None else None
        if link is None:
            break
        said = str(link) or said
    return _quote(said)


def _quote(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + " [...]"


def bad_parameter(at: Endpoint, what: str) -> ModelRequestError:
    """A setting that this API does not have."""
    return ModelRequestError(f"model {at.name!r}: {what}", model=at.name)
