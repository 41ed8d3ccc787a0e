"""Questions to the user: one flat message on the wire, but a text and a mode for a handler."""

from __future__ import annotations

from typing import Any

from quiesce.acp import schema as s
from quiesce.acp.exceptions import RequestError


def request_of(
    message: str, mode: s.ElicitationMode, meta: dict[str, Any] | None
) -> s.CreateElicitationRequest:
    """Return the request for the question `message`, asked in this `mode`."""
    if isinstance(mode, s.ElicitationFormSessionMode):
        return s.CreateFormSessionElicitationRequest(
            message=message,
            session_id=mode.session_id,
            tool_call_id=mode.tool_call_id,
            requested_schema=mode.requested_schema,
            field_meta=meta,
        )
    if isinstance(mode, s.ElicitationFormRequestMode):
        return s.CreateFormRequestElicitationRequest(
            message=message,
            request_id=mode.request_id,
            requested_schema=mode.requested_schema,
            field_meta=meta,
        )
    if isinstance(mode, s.ElicitationUrlSessionMode):
        return s.CreateUrlSessionElicitationRequest(
            message=message,
            session_id=mode.session_id,
            tool_call_id=mode.tool_call_id,
            elicitation_id=mode.elicitation_id,
            url=mode.url,
            field_meta=meta,
        )
    if isinstance(mode, s.ElicitationUrlRequestMode):
        return s.CreateUrlRequestElicitationRequest(
            message=message,
            request_id=mode.request_id,
            elicitation_id=mode.elicitation_id,
            url=mode.url,
            field_meta=meta,
        )
    raise TypeError(
        f"the mode of a question must be one of the Elicitation...Mode classes, not {type(mode).__name__}"
    )


def mode_of(request: s.CreateElicitationRequest) -> s.ElicitationMode:
    """Return the mode in which this question is asked."""
    if isinstance(request, s.CreateFormSessionElicitationRequest):
        return s.ElicitationFormSessionMode(
            session_id=request.session_id,
            tool_call_id=request.tool_call_id,
            requested_schema=request.requested_schema,
        )
    if isinstance(request, s.CreateFormRequestElicitationRequest):
        return s.ElicitationFormRequestMode(
            request_id=request.request_id, requested_schema=request.requested_schema
        )
    if isinstance(request, s.CreateUrlSessionElicitationRequest):
        return s.ElicitationUrlSessionMode(
            session_id=request.session_id,
            tool_call_id=request.tool_call_id,
            elicitation_id=request.elicitation_id,
            url=request.url,
        )
    if isinstance(request, s.CreateUrlRequestElicitationRequest):
        return s.ElicitationUrlRequestMode(
            request_id=request.request_id, elicitation_id=request.elicitation_id, url=request.url
        )
    raise RequestError.invalid_params(
        {"details": f"questions of the mode {request.mode!r} are not supported"}
    )
