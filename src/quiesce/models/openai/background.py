"""A response that OpenAI makes in the background: it does not end with the connection that asked for it.

So it is `remote` work. Its id comes with the first event of the stream; a stop sends `cancel`, and then asks for
the response until the provider says that it has ended.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from quiesce import remote
from quiesce.models.http import Exchange

_ENDED: Final = ("completed", "failed", "cancelled", "incomplete")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between two questions whether it has ended
# What the provider answers to the cancel of a response that has ended meanwhile.
_TOO_LATE: Final = (400, 404, 409)


@asynccontextmanager
async def in_the_background(
    client: Any, exchange: Exchange, name: str
) -> AsyncGenerator[Callable[[], object], None]:
    """Open the exchange, and own the response that it has started at the provider."""

    async def start() -> str:
        await exchange.open()
        while events := await exchange.peek():
            for _, text in events:
                if response_id := _id_in(text):
                    return response_id
        return ""  # the stream ended before there was a response; reading it says what is wrong

    async def cancel(response_id: str) -> None:
        await exchange.release()  # its connection may be the only one that the client may have
        try:
            await client.post(f"/responses/{response_id}/cancel", cast_to=object, body={}, options=_ONCE)
        except Exception as error:
            if getattr(error, "status_code", None) not in _TOO_LATE:
                raise

    async def confirm(response_id: str) -> None:
        pause = _FIRST_PAUSE
        while (await _status(client, response_id)) not in _ENDED:
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async with remote(start, cancel, confirm, name=f"response of {name}") as response:
        if not response.value:
            response.done()
        yield response.done


_ONCE: Final = {"max_retries": 0}  # `remote` tries again, as long as there is time


async def _status(client: Any, response_id: str) -> object:
    try:
        response = await client.get(f"/responses/{response_id}", cast_to=object, options=_ONCE)
    except Exception as error:
        if getattr(error, "status_code", None) == 404:
            return "cancelled"  # the provider knows of no such response: none is being made
        raise
    return response.get("status")


def _id_in(text: str) -> str:
    try:
        data = json.loads(text)
        return str(data["response"]["id"])
    except (ValueError, KeyError, TypeError):
        return ""
