"""Something between a store and its server that loses what it is told to lose."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from dataclasses import dataclass, field
from typing import Self


@dataclass
class _Pair:
    """One connection of a client, and the one to the server for it."""

    client: socket.socket
    server: socket.socket
    kept: bytearray = field(default_factory=bytearray)  # requests that were not forwarded
    is_open: bool = True


class Proxy:
    """Forwards connections to a port, on a port of its own.

    - `loses_answers`: the next answer of the server is dropped, and its connection cut: the request was carried out.
    - `loses_requests`: the next request is dropped, and its connection cut.
    - `keeps_requests`: requests are kept back, until `deliver`, even if the client is gone by then.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.loses_answers = self.loses_requests = self.keeps_requests = False
        self.cuts = 0
        self._pairs: list[_Pair] = []
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._over = False
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()

    def _forward(self) -> None:
        while not self._over:
            for key, _ in self._selector.select(0.05):
                with self._lock:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data[0].is_open:
                        self._pump(*key.data)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        pair = _Pair(client, server)
        self._pairs.append(pair)
        self._selector.register(client, selectors.EVENT_READ, (pair, True))
        self._selector.register(server, selectors.EVENT_READ, (pair, False))

    def _pump(self, pair: _Pair, is_request: bool) -> None:
        source, target = (pair.client, pair.server) if is_request else (pair.server, pair.client)
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(1 << 16)
        if not data:
            if is_request and pair.kept:  # the server is not to know yet that its client is gone
                self._selector.unregister(pair.client)
                return
            self._cut(pair)
        elif is_request and self.keeps_requests:
            pair.kept += data
        elif (is_request and self.loses_requests) or (not is_request and self.loses_answers):
            self.loses_requests = self.loses_answers = False
            self.cuts += 1
            self._cut(pair)
        else:
            try:
                target.sendall(data)
            except OSError:
                self._cut(pair)

    def _cut(self, pair: _Pair) -> None:
        if not pair.is_open:
            return
        pair.is_open = False
        self._pairs.remove(pair)
        for one in (pair.client, pair.server):
            with contextlib.suppress(KeyError):
                self._selector.unregister(one)
            one.close()

    def cut(self) -> None:
        """Cut every connection."""
        with self._lock:
            for pair in list(self._pairs):
                self._cut(pair)

    def deliver(self) -> int:
        """Forward the requests that were kept back; returns how many bytes."""
        with self._lock:
            self.keeps_requests = False
            size = 0
            for pair in self._pairs:
                size += len(pair.kept)
                pair.server.sendall(pair.kept)
                pair.kept.clear()
            return size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut everything, and stop. May be called again."""
        if self._over:
            return
        self._over = True
        self._thread.join()
        self.cut()
        self._selector.close()
        self._listener.close()
