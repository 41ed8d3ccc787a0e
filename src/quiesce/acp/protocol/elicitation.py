"""Questions to the user: one flat message on the wire, but a text and a mode for a handler."""

from __future__ import annotations

from typing import Any, Final

from quiesce.acp import schema as s
from quiesce.acp.exceptions import RequestError

# A request has all the fields of its mode, under the same names, and the text.
_MODES_AND_REQUESTS: Final = (
    (s.ElicitationFormSessionMode, s.CreateFormSessionElicitationRequest),
    (s.ElicitationFormRequestMode, s.CreateFormRequestElicitationRequest),
    (s.ElicitationUrlSessionMode, s.CreateUrlSessionElicitationRequest),
    (s.ElicitationUrlRequestMode, s.CreateUrlRequestElicitationRequest),
)
_FIELDS: Final = {
    mode: [name for name in mode.__struct_fields__ if name not in s.Message.__struct_fields__]
    for mode, _ in _MODES_AND_REQUESTS
}


def request_of(
    message: str, mode: s.ElicitationMode, meta: dict[str, Any] | None
) -> s.CreateElicitationRequest:
    """Return the request for the question `message`, asked in this `mode`."""
    for mode_class, request_class in _MODES_AND_REQUESTS:
        if isinstance(mode, mode_class):
            fields: dict[str, Any] = {name: getattr(mode, name) for name in _FIELDS[mode_class]}
            return request_class(message=message, field_meta=meta, **fields)
    raise TypeError(
        f"the mode of a question must be one of the Elicitation...Mode classes, not {type(mode).__name__}"
    )


def mode_of(request: s.CreateElicitationRequest) -> s.ElicitationMode:
    """Return the mode in which this question is asked."""
    for mode_class, request_class in _MODES_AND_REQUESTS:
        if isinstance(request, request_class):
            fields: dict[str, Any] = {name: getattr(request, name) for name in _FIELDS[mode_class]}
            return mode_class(**fields)
    raise RequestError.invalid_params(
        {"details": f"questions of the mode {request.mode!r} are not supported"}
    )
