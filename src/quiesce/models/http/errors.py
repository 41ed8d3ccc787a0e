"""Translates the exceptions of the official clients into those of `quiesce.models`, with advice on what to do.

The clients of OpenAI and Anthropic come from the same generator, and so do their exceptions. They are recognised by
their names and attributes, so neither package has to be imported. Exceptions that the HTTP library raises while a
stream is read are recognised in the same way.
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
    """The server that is called, for the text of errors.

    `missing_key` are parts of the messages that its client raises when it has no key.
    """

    name: str
    provider: str
    model: str
    url: str
    key_variable: str
    missing_key: tuple[str, ...] = ()


def translate(error: Exception, endpoint: Endpoint) -> ModelError:
    """Return the error to raise for `error`, which the caller makes its cause."""
    if isinstance(error, ModelError):
        return error
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        response = getattr(error, "response", None)
        headers = getattr(response, "headers", None) or {}
        return of_status(
            status, body_message(getattr(error, "body", None)) or str(error), endpoint, headers, body=error
        )
    if any(part in str(error) for part in endpoint.missing_key):
        return ModelAuthenticationError(
            f"model {endpoint.name!r} has no key for {endpoint.provider}: set {endpoint.key_variable}, "
            "or pass api_key=. (For a local server, any text will do.)",
            model=endpoint.name,
        )
    if "PoolTimeout" in _class_names(error):
        return ModelConnectionError(
            f"model {endpoint.name!r}: all connections of its HTTP client are in use, and none became free in time: "
            "raise the client's limits, or make fewer calls at the same time",
            model=endpoint.name,
        )
    if "ReadTimeout" in _class_names(error):
        return ModelTimeoutError(
            f"model {endpoint.name!r}: {endpoint.url} sent nothing for longer than the read timeout "
            "of its HTTP client: give the client a longer timeout",
            model=endpoint.name,
        )
    if "ConnectError" in _class_names(error) or "ConnectTimeout" in _class_names(error):
        return ModelConnectionError(
            f"model {endpoint.name!r}: cannot connect to {endpoint.url} ({_root_message(error)}): "
            "is the server running, and is base_url its address?",
            model=endpoint.name,
        )
    if kinds & {"APIConnectionError", "TransportError", "RequestError", "StreamError"} or isinstance(
        error, OSError
    ):
        return ModelConnectionError(
            f"model {endpoint.name!r}: the connection to {endpoint.url} broke ({_root_message(error)}): try again",
            model=endpoint.name,
        )
    return ModelError(
        f"model {endpoint.name!r}: the client of {endpoint.provider} failed: "
        f"{type(error).__name__}: {_quote(str(error))}",
        model=endpoint.name,
    )


def of_status(
    status: int, message: str, endpoint: Endpoint, headers: Mapping[str, str], *, body: object = None
) -> ModelError:
    """Return the error for a response with this HTTP status; `message` is the provider's own."""
    message = _quote(message)
    make: type[ModelError]
    if status == 401:
        make, advice = (
            ModelAuthenticationError,
            f"the key is missing or wrong: set {endpoint.key_variable}, or pass api_key=",
        )
    elif status == 403:
        make, advice = ModelAuthenticationError, "the key is not allowed to make this request"
    elif status == 404:
        make, advice = (
            ModelNotFoundError,
            f"does this server have a model named {endpoint.model!r}, and is base_url {endpoint.url!r} right?",
        )
    elif status == 429 and _is_out_of_quota(message, body):
        make, advice = ModelRateLimitError, "the account has no credit left; waiting does not help"
    elif status == 429:
        make, advice = ModelRateLimitError, "wait, or make fewer calls at the same time"
    elif status in (408, 409) or status >= 500:
        make, advice = ModelOverloadedError, "the provider failed: try again later"
    elif status == 413 or any(sign in message.lower() for sign in _TOO_LONG):
        make, advice = ModelRequestError, "the conversation is too long: send less of it"
    elif status == 400 and "stream_options" in message:
        make, advice = (
            ModelRequestError,
            "this server does not support stream_options: use OpenAIModel(..., include_usage=False)",
        )
    else:
        make, advice = ModelRequestError, "the request was rejected: change it before retrying"
    wait = retry_after(headers)
    if wait is not None and make in (ModelRateLimitError, ModelOverloadedError):
        advice += f" (it asks to wait {wait:g} s)"
    error = make(
        f"model {endpoint.name!r}: {endpoint.provider} answered {status}: {message} - {advice}",
        model=endpoint.name,
        status=status,
        retry_after=wait,
        request_id=headers.get("x-request-id") or headers.get("request-id"),
    )
    if headers.get("x-should-retry") == "false" or (status == 429 and _is_out_of_quota(message, body)):
        error.retryable = False
    return error


# Errors inside a stream have no HTTP status (the response began with 200), only a kind. By the status each would have
# had.
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


def of_event(error: object, endpoint: Endpoint) -> ModelError:
    """Return the error that a provider reported inside a stream that had begun well."""
    message = body_message(error) or "no reason given"
    fields = error if isinstance(error, Mapping) else {}
    status = next((code for key in ("code", "status") if isinstance(code := fields.get(key), int)), None)
    # `code` may be an HTTP status or a word; any other number says nothing that could be used here.
    if status is None or not 400 <= status < 600:
        kinds = (fields.get("code"), fields.get("type"))
        status = next((_STATUS_OF_KIND[kind] for kind in kinds if kind in _STATUS_OF_KIND), None)
    if status is not None:
        return of_status(status, message, endpoint, {}, body=error)
    return ModelOverloadedError(
        f"model {endpoint.name!r}: {endpoint.provider} failed in the middle of its answer: "
        f"{_quote(message)} - try again",
        model=endpoint.name,
    )


def ended_early(endpoint: Endpoint) -> ModelConnectionError:
    """Return the error for a stream that ended before the answer did."""
    return ModelConnectionError(
        f"model {endpoint.name!r}: {endpoint.url} ended its stream before the answer was complete: try again",
        model=endpoint.name,
    )


def not_a_stream(endpoint: Endpoint, content_type: str, head: str) -> ModelBehaviorError:
    """Return the error for a response that is not a stream of events."""
    return ModelBehaviorError(
        f"model {endpoint.name!r}: {endpoint.url} did not answer with a stream of events but with "
        f"{content_type or 'something else'}: {_quote(head) or '(nothing)'} - "
        "does this server support streaming, and is base_url right?",
        model=endpoint.name,
    )


def unreadable_event(endpoint: Endpoint, text: str) -> ModelBehaviorError:
    """Return the error for an event that does not conform to the provider's API."""
    return ModelBehaviorError(
        f"model {endpoint.name!r}: {endpoint.url} sent an event that cannot be read: {_quote(text)}",
        model=endpoint.name,
    )


def body_message(body: object) -> str:
    """Return the message in the body of an error, in any of the shapes that servers use."""
    if isinstance(body, str):
        return body
    if isinstance(body, Mapping):
        for key in ("message", "error", "detail"):
            if body.get(key):
                return body_message(body[key])
    return "" if body is None else str(body)


def _is_out_of_quota(message: str, body: object) -> bool:
    code = body.get("code") if isinstance(body, Mapping) else getattr(body, "code", None)
    return code == "insufficient_quota" or "insufficient_quota" in message


def _class_names(error: BaseException) -> set[str]:
    """Return the names of the classes of this error and of the errors that caused it."""
    names: set[str] = set()
    link: BaseException | None = error
    # Bounded, because a chain of causes may contain a cycle.
    for _ in range(6):
        if link is None:
            break
        names |= {kind.__name__ for kind in type(link).__mro__}
        link = link.__context__ if link.__cause__ is None else link.__cause__
    return names


def _root_message(error: BaseException) -> str:
    """Return the message of the innermost cause that has one."""
    message = str(error) or type(error).__name__
    link: BaseException | None = error
    for _ in range(6):
        link = link.__cause__ if link is not None else None
        if link is None:
            break
        message = str(link) or message
    return _quote(message)


def _quote(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + " [...]"


def bad_parameter(endpoint: Endpoint, what: str) -> ModelRequestError:
    """Return the error for a setting that the API does not support; `what` says which, and what to do."""
    return ModelRequestError(f"model {endpoint.name!r}: {what}", model=endpoint.name)
