"""The agent's end of a connection. The agent uses it as its client.

Turns are in `turns`; updates about a session that the client does not know yet are in `new_sessions`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw
from msgspec.structs import replace

from quiesce import Reason, shielded
from quiesce._safe.printed import logger
from quiesce.acp import schema as s
from quiesce.acp.protocol import (
    AGENT,
    CLIENT,
    Method,
    answer_of,
    caller,
    decode,
    decoder,
    encode,
    handler_of,
    request_of,
)
from quiesce.kernel.inner import without_cancels
from quiesce.wire import ConnectionEnded, Notification, Request, RequestCancelled
from quiesce.wire.inner import Late, current_request

from .new_sessions import NewSessions
from .observers import Observer
from .side import Side, target_of, transport_of
from .turns import Turn, Turns

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.acp.protocol import Agent, Client
    from quiesce.wire import Limits, Transport

_SESSION_CANCEL = Reason("user", "session/cancel")
_SESSION_CLOSE = Reason("user", "session/close")
_SESSION_DELETE = Reason("user", "session/delete")
# The requests that stop the turn of their session.
_STOPPING_REQUESTS: Final = {"close_session": _SESSION_CLOSE, "delete_session": _SESSION_DELETE}
_CANCELLED = Raw(encode(s.PromptResponse(stop_reason="cancelled")))


def _check_known(transport: Transport) -> None:
    client = transport.client
    if client is not None and not client.is_known:
        raise PermissionError(
            f"an agent is not served to {client.address}, because anyone could connect from there: give the server a "
            "token (serve_websocket(token=...), serve_tcp(token=...)) or a socket in the file system (serve_unix), "
            "or pass trust_client=True if something in front of it authenticates its users"
        )


class AgentSideConnection(Side):
    """A connection to a client, for an agent: `run_agent` makes one.

    ```python
    async with AgentSideConnection(MyAgent(), transport) as client:
        await client.wait_closed()
    ```

    - `to_agent`: the agent, or a function that makes it from this connection. If it has `on_connect(conn)`,
      that is called.
    - `input_stream`: a `quiesce.wire` transport; or an `asyncio.StreamWriter` to write to, with
      `output_stream` an `asyncio.StreamReader` to read from; or the same of anyio.
    - `listening`: begin at once (the default), or with `async with`, `listen()` or the first message.
    - `observers`: functions of a `StreamEvent`, called with every message.
    - `limits`, `grace`, `scope`: as for `quiesce.wire.Peer`.
    - `trust_client`: serve any client. Otherwise a connection that a server of `quiesce.wire` accepted is
      served only if its client is known (it has presented the server's token, or is on a socket in the file
      system and runs as the same user); else this raises `PermissionError`.
    - `on_disconnect(reason)`: called in the event loop when the client has disconnected, before anything is
      stopped because of that.

    `session/cancel` cancels the handler of the prompt itself; so do `session/close`, `session/delete` and
    `$/cancel_request`. The agent's own `cancel(session_id)` is called as well, if there was anything to
    cancel. However a prompt is stopped, it is answered `cancelled`.
    """

    def __init__(
        self,
        to_agent: Callable[[Client], Agent] | Agent | Any,
        input_stream: Any,
        output_stream: Any = None,
        listening: bool = True,
        *,
        use_unstable_protocol: bool = False,
        observers: Iterable[Observer] | None = None,
        name: str = "client",
        limits: Limits | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
        trust_client: bool = False,
        on_disconnect: Callable[[Reason], object] | None = None,
    ) -> None:
        transport = transport_of(input_stream, output_stream)
        self.client = transport.client
        if not trust_client:
            _check_known(transport)
        self._turns = Turns()
        self._new_sessions = NewSessions(self._send_update)
        self._use_unstable_protocol = use_unstable_protocol
        agent = target_of(to_agent, self)
        self._agent = agent
        requests = {
            method.name: request
            for method in AGENT.values()
            if (request := self._request(agent, method)) is not None
        }
        cancel = Notification(
            self._session_cancelled, decoder("session/cancel", s.CancelNotification), at_once=True
        )
        self._connect(
            agent,
            transport,
            requests,
            {"session/cancel": cancel},
            listening=listening,
            observers=observers,
            name=name,
            limits=limits,
            grace=grace,
            scope=scope,
            on_disconnect=on_disconnect,
        )

    # Requests from the client

    def _request(self, agent: Any, method: Method) -> Request | None:
        fn = handler_of(agent, method.attribute)
        if fn is None:
            return None
        call = caller(fn)
        wrapper = self._WRAPPERS.get(method.attribute)

        async def handle(params: Any) -> Raw:
            result = await (call(params) if wrapper is None else wrapper(self, call, params))
            return answer_of(result, method.name, agent, may_be_empty=method.may_be_empty)

        return Request(
            handle,
            decoder(method.name, method.params),
            when_cancelled=_CANCELLED if method.attribute == "prompt" else None,
            stopping=self._turn_stopped if method.attribute == "prompt" else None,
            arrived=(
                self._stop_on_arrival(_STOPPING_REQUESTS[method.attribute])
                if method.attribute in _STOPPING_REQUESTS
                else None
            ),
        )

    async def _initialize(self, call: Callable[[Any], Any], params: s.InitializeRequest) -> Any:
        self._capabilities = params.client_capabilities
        return await call(params)

    async def _new_session(self, call: Callable[[Any], Any], params: s.NewSessionRequest) -> Any:
        with self._new_sessions.opening(self._connection.sender.backend) as opening:
            result = await call(params)
            opening.session_id = _session_id_of(result)
        return result

    async def _load_session(self, call: Callable[[Any], Any], params: s.LoadSessionRequest) -> Any:
        turn = self._turns.get(params.session_id)
        # A turn that is being stopped ends soon, so wait for it; the agent decides what to do during a
        # running one.
        if turn is not None and turn.prompt.stopped is not None:
            await self._turns.wait_until_idle(params.session_id)
        with self._new_sessions.in_use(params.session_id):
            return await call(params)

    async def _prompt(self, call: Callable[[Any], Any], params: s.PromptRequest) -> Any:
        with self._new_sessions.in_use(params.session_id):
            return await self._take_turn(call, params)

    async def _take_turn(self, call: Callable[[Any], Any], params: s.PromptRequest) -> Any:
        prompt = current_request()
        turn = await self._turns.begin(params.session_id, prompt)
        try:
            # The prompt was stopped while it waited for its turn. The agent never saw it, so it has nothing
            # to cancel.
            if prompt.stopped is not None:
                turn.agent_notified = True
                return s.PromptResponse(stop_reason="cancelled")
            result = await call(params)
        except BaseException as error:
            is_stopped = prompt.stopped is not None or (
                isinstance(error, ConnectionEnded) and self._connection.sender.ended is not None
            )
            if not is_stopped or not isinstance(without_cancels(error), Exception):
                raise
            # The error is how the handler reacts to being stopped. The protocol requires the answer
            # `cancelled`, because clients show an error to the user as a failure.
            logger.debug("the prompt of %r was cancelled, and raised %r", params.session_id, error)
            return s.PromptResponse(stop_reason="cancelled")
        finally:
            try:
                # Once the connection is closing it handles no more notifications, so the one that
                # `_turn_stopped` added may never run: call the agent's `cancel` from here.
                if prompt.stopped is not None and self._connection.sender.closing and not turn.agent_notified:
                    await self._call_agents_cancel(turn)
            finally:
                self._turns.end(turn)
        return _as_cancelled(result) if prompt.stopped is not None else result

    def _turn_stopped(self, params: s.PromptRequest, reason: Reason) -> None:
        """Called when the handler of a prompt is cancelled, no matter why."""
        turn, connection = self._turns.get(params.session_id), self._connection
        # The session's turn may be another prompt's: this one then still waits for its turn, and has nothing
        # to stop.
        if turn is None or turn.prompt.stopped is None or turn.prompt.decoded is not params:
            return
        connection.calls.cancel_lane(turn.session_id, f"{reason}")
        if handler_of(self._agent, "cancel") is None:
            return
        turn.handlers += 1

        async def cancel(note: s.CancelNotification) -> None:
            try:
                await self._call_agents_cancel(turn)
            finally:
                self._turns.end(turn)

        # Not in the lane of the session: requests that the prompt still makes must not have to wait for this.
        lane = ("session/cancel", turn.session_id)
        connection.lanes.add(lane, Notification(cancel), "session/cancel", turn.notification, 0)

    async def _call_agents_cancel(self, turn: Turn) -> None:
        """Call the agent's own `cancel`, also while the connection closes. A failure is only logged."""
        cancel = handler_of(self._agent, "cancel")
        if cancel is None:
            return
        turn.agent_notified = True

        async def agents_cancel() -> None:
            await caller(cancel)(turn.notification)

        try:
            await shielded(agents_cancel)
        except Exception:
            logger.exception("%s: the agent's own cancel of %r failed", self._peer.name, turn.session_id)

    def _stop_on_arrival(self, reason: Reason) -> Callable[[Any], None]:
        """Return a function that stops the turn as soon as such a request arrives."""
        # Not when its handler starts: handlers are limited in number, and the very turns to be stopped may
        # occupy them all.
        return lambda params: self._stop_turn(params.session_id, reason)

    async def _close_session(
        self,
        call: Callable[[Any], Any],
        params: s.CloseSessionRequest | s.DeleteSessionRequest,
        reason: Reason = _SESSION_CLOSE,
    ) -> Any:
        self._stop_turn(params.session_id, reason)
        await self._turns.wait_until_idle(params.session_id)
        self._new_sessions.known.discard(params.session_id)
        return await call(params)

    async def _delete_session(self, call: Callable[[Any], Any], params: s.DeleteSessionRequest) -> Any:
        return await self._close_session(call, params, _SESSION_DELETE)

    # What is done around the call to the agent's own method, by the name of that method.
    _WRAPPERS: Final[Mapping[str, Callable[..., Awaitable[Any]]]] = {
        "initialize": _initialize,
        "new_session": _new_session,
        "load_session": _load_session,
        "resume_session": _load_session,
        "prompt": _prompt,
        "close_session": _close_session,
        "delete_session": _delete_session,
    }

    def _session_cancelled(self, params: s.CancelNotification) -> None:
        """Called before any later message is read, so that the next prompt is not affected."""
        turn = self._turns.get(params.session_id)
        if turn is not None:
            turn.notification = params
        self._stop_turn(params.session_id, _SESSION_CANCEL)

    def _stop_turn(self, session_id: str, reason: Reason) -> None:
        self._connection.requests.cancel_where(
            lambda method, params: method == "session/prompt" and params.session_id == session_id, reason
        )

    # Requests and notifications to the client

    @property
    def client_capabilities(self) -> s.ClientCapabilities | None:
        """The capabilities that the client announced; None before `initialize`."""
        capabilities: s.ClientCapabilities | None = self._capabilities
        return capabilities

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        """Send the client an update about a session; it arrives before the answer to a pending request."""
        note = s.SessionNotification(session_id=session_id, update=update, field_meta=kwargs or None)
        if not self._new_sessions.holds_back(note):
            await self._send_notification("session/update", note)

    def _send_update(self, note: s.SessionNotification) -> None:
        if not self.closed:
            self._connection.sender.send_notification("session/update", Raw(encode(note)))

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[s.PermissionOption], **kwargs: Any
    ) -> s.RequestPermissionResponse:
        """Ask the user for permission; if the turn is cancelled meanwhile, the outcome is `cancelled`."""
        params = s.RequestPermissionRequest(
            session_id=session_id, tool_call=tool_call, options=options, field_meta=kwargs or None
        )
        try:
            return await self._send(
                CLIENT["request_permission"], params, s.RequestPermissionResponse, lane=session_id
            )
        except RequestCancelled:
            return s.RequestPermissionResponse(outcome=s.DeniedOutcome(outcome="cancelled"))

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **kwargs: Any
    ) -> s.ReadTextFileResponse:
        """Read a file as the user sees it, including unsaved changes."""
        params = s.ReadTextFileRequest(
            session_id=session_id, path=path, line=line, limit=limit, field_meta=kwargs or None
        )
        return await self._send(CLIENT["read_text_file"], params, s.ReadTextFileResponse, lane=session_id)

    async def write_text_file(
        self, session_id: str, path: str, content: str, **kwargs: Any
    ) -> s.WriteTextFileResponse:
        """Write a file through the client."""
        params = s.WriteTextFileRequest(
            session_id=session_id, path=path, content=content, field_meta=kwargs or None
        )
        return await self._send(CLIENT["write_text_file"], params, s.WriteTextFileResponse, lane=session_id)

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str] | None = None,
        env: list[s.EnvVariable] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **kwargs: Any,
    ) -> s.CreateTerminalResponse:
        """Start a command in a terminal of the client."""
        params = s.CreateTerminalRequest(
            session_id=session_id,
            command=command,
            args=args,
            env=env,
            cwd=cwd,
            output_byte_limit=output_byte_limit,
            field_meta=kwargs or None,
        )
        late = _LateTerminal(self._connection.calls.send_and_forget, session_id)
        return await self._send(
            CLIENT["create_terminal"], params, s.CreateTerminalResponse, lane=session_id, late=late
        )

    async def terminal_output(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> s.TerminalOutputResponse:
        """Return the output of a terminal so far."""
        params = s.TerminalOutputRequest(
            session_id=session_id, terminal_id=terminal_id, field_meta=kwargs or None
        )
        return await self._send(CLIENT["terminal_output"], params, s.TerminalOutputResponse, lane=session_id)

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> s.WaitForTerminalExitResponse:
        """Wait until a terminal's command has exited."""
        params = s.WaitForTerminalExitRequest(
            session_id=session_id, terminal_id=terminal_id, field_meta=kwargs or None
        )
        return await self._send(
            CLIENT["wait_for_terminal_exit"], params, s.WaitForTerminalExitResponse, lane=session_id
        )

    async def kill_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> s.KillTerminalResponse:
        """Stop a terminal's command; the terminal stays until it is released."""
        params = s.KillTerminalRequest(
            session_id=session_id, terminal_id=terminal_id, field_meta=kwargs or None
        )
        return await self._send(CLIENT["kill_terminal"], params, s.KillTerminalResponse, lane=session_id)

    async def release_terminal(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> s.ReleaseTerminalResponse:
        """Release a terminal; its command is stopped if it is still running."""
        params = s.ReleaseTerminalRequest(
            session_id=session_id, terminal_id=terminal_id, field_meta=kwargs or None
        )
        return await self._send(
            CLIENT["release_terminal"], params, s.ReleaseTerminalResponse, lane=session_id
        )

    async def create_elicitation(
        self, message: str, mode: s.ElicitationMode, **kwargs: Any
    ) -> s.CreateElicitationResponse:
        """Ask the user to fill in a form or to visit a URL.

        If the turn is cancelled meanwhile, the action is `cancel`.
        """
        params = request_of(message, mode, kwargs or None)
        lane: str | None = getattr(mode, "session_id", None)
        try:
            # To type checkers a union, which is not a type that `type[T]` accepts.
            result: Any = s.CreateElicitationResponse
            response: s.CreateElicitationResponse = await self._send(
                CLIENT["create_elicitation"], params, result, lane=lane
            )
            return response
        except RequestCancelled:
            return s.CancelElicitationResponse()

    async def complete_elicitation(self, elicitation_id: str, **kwargs: Any) -> None:
        """Tell the client that the user has completed what the URL was for."""
        note = s.CompleteElicitationNotification(elicitation_id=elicitation_id, field_meta=kwargs or None)
        await self._send_notification("elicitation/complete", note)

    def on_connect(self, conn: Any) -> None:
        """Do nothing; the method is part of the `Client` protocol."""


def _as_cancelled(result: Any) -> Any:
    """Return the result of a cancelled prompt's handler with the stop reason `cancelled`, whatever it was."""
    if isinstance(result, s.PromptResponse):
        return result if result.stop_reason == "cancelled" else replace(result, stop_reason="cancelled")
    if isinstance(result, dict):
        return {**result, "stopReason": "cancelled"}
    return s.PromptResponse(stop_reason="cancelled")


def _session_id_of(result: Any) -> str | None:
    name = result.get("sessionId") if isinstance(result, dict) else getattr(result, "session_id", None)
    return name if isinstance(name, str) else None


class _LateTerminal(Late):
    """Releases a terminal whose creator was cancelled before the answer: nothing else knows its id."""

    __slots__ = ("_send_and_forget", "_session_id")

    def __init__(self, send_and_forget: Callable[[str, Any], object], session_id: str) -> None:
        super().__init__()
        self._send_and_forget = send_and_forget
        self._session_id = session_id

    def answered(self, result: Raw | None) -> None:
        """Release the terminal, if one was created."""
        if result is not None:
            created = decode(result, s.CreateTerminalResponse)
            params = s.ReleaseTerminalRequest(session_id=self._session_id, terminal_id=created.terminal_id)
            self._send_and_forget("terminal/release", Raw(encode(params)))
