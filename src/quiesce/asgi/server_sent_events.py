"""Server-sent events: one record, and the records of a stream.

The text of a record comes from the caller: a str as it is, anything else as JSON. So this module needs no codec of any
other package: for the events of a run, that is `quiesce.agents.encode_stream_event`.

The records of a stream are a `quiesce.Stream`, because Starlette leaves an async generator at its `yield` when a client
disconnects, and only the garbage collector closes it there.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import TypeVar

from quiesce import Stream, stream

T = TypeVar("T")

# Only these end a line of the format; `str.splitlines` knows more.
_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_NOT_IN_ONE_LINE = re.compile(r"[\r\n\0]")


def sse_record(
    data: object,
    *,
    event: str | None = None,
    id: str | None = None,  # noqa: A002 - the name of the field
    retry: float | None = None,
) -> str:
    """Return one record of a stream of server-sent events (`text/event-stream`).

    ```python
    sse_record({"left": 0}, event="report", id="7")    # 'event: report\\nid: 7\\ndata: {"left": 0}\\n\\n'
    ```

    `data` is a text, which may have any number of lines, or anything else that JSON can hold, which is sent as JSON.
    `event` is the name that `addEventListener` takes; without one it is `"message"`. `id` is what a browser sends
    back as `Last-Event-ID` when it reconnects, after `retry` seconds.
    """
    lines = []
    for name, value in (("event", event), ("id", id)):
        if value is None:
            continue
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not {type(value).__name__}")
        if _NOT_IN_ONE_LINE.search(value) is not None:
            raise ValueError(
                f"{name} must be one line without NUL, not {value[:100]!r}: it would end the field"
            )
        lines.append(f"{name}: {value}")
    if retry is not None:
        if isinstance(retry, bool) or not isinstance(retry, (int, float)):
            raise TypeError(f"retry must be a number of seconds, not {type(retry).__name__}")
        if not 0 <= retry < 1e9:
            raise ValueError(f"retry must be a number of seconds, 0 or more, not {retry!r}")
        lines.append(f"retry: {round(retry * 1000)}")
    text = data if isinstance(data, str) else json.dumps(data, allow_nan=False)
    lines += [f"data: {line}" for line in _LINE_ENDS.split(text)]
    # A lone surrogate cannot be sent. In JSON there is none: there it is an escape.
    return "\n".join([*lines, "", ""]).encode(errors="replace").decode()


def sse_events(
    events: AsyncIterable[T],
    encode: Callable[[T], object] | None = None,
    *,
    end: str | None = None,
    name: str | None = None,
) -> Stream[str]:
    """Return the records of a stream, one per event: the body of a streaming response.

    ```python
    result = Runner.run_streamed(agent, question)
    records = sse_events(result.stream_events(), encode_stream_event)
    return StreamingResponse(records, media_type="text/event-stream")
    ```

    `encode` returns what is sent of an event: a text, or anything that JSON can hold; without it, the event itself.
    The name of a record is the `type` of its event, if it has one that is a str. `end` is the name of one more record,
    after the last event: a browser's `EventSource` that is not closed then sends its request again.

    It is a `Stream`, so it belongs to the current scope, under `StopOnDisconnect` the scope of the request: when the
    client disconnects, `events` is closed before the request ends. An error of `events` or of `encode` ends the
    response, and is raised to the server; the client sees that the response was cut off.
    """
    if encode is not None and not callable(encode):
        raise TypeError(f"encode must be a function of an event, not {type(encode).__name__}")
    if not hasattr(events, "__aiter__"):
        raise TypeError(
            f"events must be an async iterable, such as result.stream_events(), not {type(events).__name__}"
        )
    last = "" if end is None else sse_record({"type": end}, event=end)
    return stream(_records(events, encode, last), name=name or "server-sent events")


async def _records(
    events: AsyncIterable[T], encode: Callable[[T], object] | None, last: str
) -> AsyncGenerator[str, None]:
    try:
        async for event in events:
            kind = getattr(event, "type", None)
            yield sse_record(
                event if encode is None else encode(event), event=kind if isinstance(kind, str) else None
            )
        if last:
            yield last
    finally:
        # `events` is still referenced by the caller, so nothing else closes it.
        if (aclose := getattr(events, "aclose", None)) is not None:
            await aclose()
