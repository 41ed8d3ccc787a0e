"""A server with the Realtime protocol on the loopback interface, in a thread of its own.

Invariants
- It runs in one thread with a selector, and is independent of the event loop of the tests. The lists that
  other threads read only grow.
- Its sessions are bounded in number and in seconds, and so is what waits to be sent.
- `close()` ends every connection and joins the thread: no socket and no thread is left.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

from quiesce.realtime.testing.speech import Turn, as_script

from .client_event_check import ClientEventCheck
from .connection import ServedConnection
from .faults import Faults
from .session import ServedSession

T = TypeVar("T")


class LocalRealtimeServer:
    """A provider on your own machine, which answers from a script.

    It has sessions, turn detection, responses with audio, tool calls, cancellation, truncation and errors.

    ```python
    with LocalRealtimeServer([call("weather", city="Paris"), "It rains."]) as server:
        session = await runner.run(model_config={"url": server.url, "api_key": "none"})
    ```

    Each connection starts at the beginning of the script, unless they share it. Turns are those of
    `ScriptedRealtimeModel`. An exception is a response that fails, and functions get the client event that
    requested the response. They are called in the server's thread, and all connections wait while they run.

    - `transcripts`: of the user's speech, one for each committed audio, for sessions with transcription.
    - `pace`: seconds between two pieces of speech, unless a `Speech` has its own.
    - `faults`: what it does wrong. The entries of a list are for the first connection, the second and so on,
      and later ones have no faults. You may change it at any time, for new connections; `inflict` is for
      existing ones.
    - `shared`: all connections share the script and the transcripts, for clients that reconnect: each
      continues where the one before stopped.
    - `sessions`: how many at a time; one more is refused with 429. `seconds`: how long one may last.

    `connections` and `received` have all connections and what they sent. `complaints` has what was wrong with
    that, by the rules of the API, and by the official client's types if it is installed.
    """

    def __init__(
        self,
        turns: Turn | Iterable[Turn] = (),
        *,
        transcripts: Iterable[str] = (),
        pace: float = 0.0,
        faults: Faults | Sequence[Faults] | None = None,
        shared: bool = False,
        sessions: int = 2000,
        seconds: float = 120.0,
    ) -> None:
        self.faults = faults if isinstance(faults, Faults) else Faults()
        self._first_faults = deque(() if faults is None or isinstance(faults, Faults) else faults)
        self.connections: list[ServedConnection] = []
        self.received: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self._script = deque(as_script(turns))
        self._transcripts = deque(transcripts)
        self._shared = shared
        self._pace = pace
        self._sessions = sessions
        self._seconds = seconds
        self._check = ClientEventCheck()
        self._open: dict[socket.socket, ServedConnection] = {}
        self._wanted: dict[socket.socket, int] = {}  # the events that the selector watches
        self._orders: deque[Callable[[], None]] = deque()  # from other threads
        self._changed = threading.Condition()
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name=f"realtime server {self.port}", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"ws://127.0.0.1:{self.port}/v1/realtime"

    @property
    def open_connections(self) -> list[ServedConnection]:
        """The connections that have not ended."""
        return [connection for connection in self.connections if connection.ended is None]

    def wait_for(self, what: str | Callable[[], T], *, count: int = 1, seconds: float = 10.0) -> Any:
        """Wait for `count` events of a type, or until a function returns something true; return that.

        This blocks the thread: if an event loop has to run meanwhile, call it in another one.
        """
        look: Callable[[], Any] = what if callable(what) else lambda: self._nth_received(what, count)
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (found := look()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"the local realtime server waited {seconds:g} s for {what!r}; it has received "
                        f"{[event.get('type') for event in self.received[-20:]]}, and has {self.connections[-5:]}"
                    )
                self._changed.wait(min(left, 0.5))
        return found

    def _nth_received(self, kind: str, count: int) -> dict[str, Any] | None:
        found = [event for event in list(self.received) if event.get("type") == kind]
        return found[count - 1] if len(found) >= count else None

    def send(self, event: dict[str, Any]) -> None:
        """Send an event to every connected client, from any thread."""
        self._order(lambda: self._to_all(lambda connection: connection.say_this(event)))

    def inflict(self, faults: Faults) -> None:
        """Begin with these faults now, for every connected client, from any thread."""
        self._order(lambda: self._to_all(lambda connection: connection.strike(faults)))

    def close(self) -> None:
        """End every connection, and the thread."""
        self._closing = True
        self._poke()
        self._thread.join(10)
        if self._thread.is_alive():
            raise RuntimeError(
                "the local realtime server does not stop: is a function of its script still running?"
            )
        self._waker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _order(self, order: Callable[[], None]) -> None:
        if self._closing:
            raise RuntimeError("the local realtime server is closed")
        # Run in the server's thread, which alone may touch sockets and sessions.
        self._orders.append(order)
        self._poke()

    def _poke(self) -> None:
        try:
            self._waker.send(b"!")
        except OSError:  # closed already
            pass

    # In the thread

    def _run(self) -> None:
        try:
            with self._selector:
                self._selector.register(self._listener, selectors.EVENT_READ)
                self._selector.register(self._wake, selectors.EVENT_READ)
                while not self._closing:
                    self._run_once()
        except BaseException:
            self.complaints.append("the local realtime server itself has failed: " + traceback.format_exc())
        finally:
            for connection in self._open.values():
                connection.say_goodbye(1001, "the server has closed")
            self._listener.close()
            self._wake.close()
            with self._changed:
                self._changed.notify_all()

    def _run_once(self) -> None:
        due = min((min(c.due, c.opened_at + self._seconds) for c in self._open.values()), default=inf)
        ready = self._selector.select(None if due == inf else max(0.0, due - time.monotonic()))
        for key, events in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake:
                self._wake.recv(4096)
            else:
                connection = self._open[key.fileobj]  # type: ignore[index]
                if events & selectors.EVENT_READ:
                    self._guarded(connection, connection.read)
                if events & selectors.EVENT_WRITE:
                    self._guarded(connection, connection.go_on)
        while self._orders:
            self._orders.popleft()()
        now = time.monotonic()
        for connection in list(self._open.values()):
            if now >= connection.opened_at + self._seconds:
                self._guarded(connection, connection.expire)
            elif connection.due <= now:
                self._guarded(connection, connection.go_on)
        with self._changed:
            self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # there are no more
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = len(self.connections) + 1
            connection = ServedConnection(
                number,
                sock,
                self._first_faults.popleft() if self._first_faults else self.faults,
                partial(self._begin_session, number),
                self._check,
                self.complaints.append,
            )
            if len(self._open) >= self._sessions:
                connection.refuse(429, f"there are {self._sessions} sessions already")
            self._open[sock] = connection
            self.connections.append(connection)
            self._watch(connection)

    def _begin_session(self, number: int, path: str) -> ServedSession:
        model = parse_qs(urlsplit(path).query).get("model", [None])[0]
        script, transcripts = self._script, self._transcripts
        if not self._shared:
            script, transcripts = script.copy(), transcripts.copy()
        return ServedSession(number, script, transcripts, pace=self._pace, model=model)

    def _guarded(self, connection: ServedConnection, do: Callable[[], None]) -> None:
        before = len(connection.received)
        try:
            do()
        except Exception:
            self.complaints.append("the local realtime server itself has failed: " + traceback.format_exc())
            # One connection must not take the others with it.
            connection.end("the server has failed")
        self.received += connection.received[before:]
        self._watch(connection)

    def _to_all(self, do: Callable[[ServedConnection], None]) -> None:
        for connection in list(self._open.values()):
            self._guarded(connection, partial(do, connection))
            self._guarded(connection, connection.go_on)

    def _watch(self, connection: ServedConnection) -> None:
        """Make the selector watch what the connection waits for."""
        sock = connection.sock
        wanted = 0
        if connection.ended is None:
            wanted = (selectors.EVENT_READ if connection.wants_to_read else 0) | (
                selectors.EVENT_WRITE if connection.wants_to_write else 0
            )
        else:
            self._open.pop(sock, None)
        before = self._wanted.get(sock, 0)
        if wanted == before:
            return
        if not before:
            self._selector.register(sock, wanted)
        elif not wanted:
            self._selector.unregister(sock)
        else:
            self._selector.modify(sock, wanted)
        if wanted:
            self._wanted[sock] = wanted
        else:
            self._wanted.pop(sock, None)

    def __repr__(self) -> str:
        return f"<LocalRealtimeServer {self.url}, {len(self.open_connections)} open>"
