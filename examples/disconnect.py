"""A client leaves, and with it go the handler and its call of the model. First as it is without quiesce, then with.

Everything is real: a uvicorn server, a client and a model server on sockets of this machine. The model writes
a word every 10 ms while somebody listens, and is paid by the word.

    python examples/disconnect.py

Ends with status 0 if it held: nobody listens to the model any more, and it has written no word for nobody.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fastapi import FastAPI
from starlette.responses import StreamingResponse

import quiesce
from quiesce.asgi import StopOnDisconnect, lifespan


class Model:
    """A model server that speaks server-sent events, and knows for each path who listens and what was written."""

    def __init__(self) -> None:
        self.listeners: Counter[str] = Counter()
        self.words: Counter[str] = Counter()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1].decode()
        self.listeners[path] += 1
        try:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            for _ in range(60):
                await asyncio.sleep(0.01)
                self.words[path] += 1
                writer.write(b"data: word\n\n")
                await writer.drain()
        except ConnectionError:
            pass  # the listener has gone
        finally:
            self.listeners[path] -= 1
            writer.close()

    async def wait_for_words(self, path: str, count: int) -> None:
        while self.words[path] < count:  # noqa: ASYNC110  (a word comes every 10 ms)
            await asyncio.sleep(0.005)


def make_app(model_url: str, *, with_quiesce: bool) -> FastAPI:
    """Two endpoints that ask the model: one waits for the whole answer, one streams it on."""
    app = FastAPI(lifespan=lifespan() if with_quiesce else None)
    if with_quiesce:
        app.add_middleware(StopOnDisconnect, on_stop=lambda report, scope: print(f"      {report}"))

    async def words() -> AsyncIterator[bytes]:
        async with httpx.AsyncClient() as client, client.stream("GET", f"{model_url}/streamed") as answer:
            async for chunk in answer.aiter_bytes():
                yield chunk

    @app.get("/whole")
    async def whole() -> int:
        async with httpx.AsyncClient(timeout=60) as client:
            return len((await client.get(f"{model_url}/whole")).text)

    @app.get("/streamed")
    async def streamed() -> StreamingResponse:
        return StreamingResponse(quiesce.stream(words()) if with_quiesce else words())

    return app


async def ask_and_leave(port: int, path: str, model: Model) -> None:
    """A client that goes when the model has just begun with its answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: example\r\n\r\n".encode())
    await model.wait_for_words(path, 5)
    writer.close()
    await writer.wait_closed()


async def show(*, with_quiesce: bool) -> bool:
    """Serve, let a client leave each endpoint, and say what went on without it; whether nothing did."""
    model = Model()
    model_server = await asyncio.start_server(model.answer, "127.0.0.1", 0)
    model_url = f"http://127.0.0.1:{model_server.sockets[0].getsockname()[1]}"
    listener = socket.create_server(("127.0.0.1", 0))
    app = make_app(model_url, with_quiesce=with_quiesce)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started:  # noqa: ASYNC110  (uvicorn has no event for it)
        await asyncio.sleep(0.01)
    held = True
    for path in ("/whole", "/streamed"):
        print(f"   a client asks for {path}, and leaves after five words of the model")
        await ask_and_leave(listener.getsockname()[1], path, model)
        await asyncio.sleep(0.05)
        before = model.words[path]
        await asyncio.sleep(0.2)
        wasted = model.words[path] - before
        print(f"      the model has {model.listeners[path]} listener(s), and wrote {wasted} words for nobody")
        held = held and model.listeners[path] == 0 and wasted == 0
    server.should_exit = True
    await serving
    model_server.close()
    await model_server.wait_closed()
    return held


async def main() -> int:
    print("without quiesce:")
    await show(with_quiesce=False)
    print("with quiesce:")
    held = await show(with_quiesce=True)
    print(
        "It held: a client that leaves takes its handler and its model call along."
        if held
        else "It did NOT hold."
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
