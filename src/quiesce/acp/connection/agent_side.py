"""The agent's end of a connection. To the agent it is the client.

Turns are in `turns`, and what an agent tells about a session that its client does not know yet in `new_sessions`.
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
from quiesce.wire.inner import Incoming, Late, current_work

from .new_sessions import NewSessions
from .observers import Observer
from .side import Side, target_of, transport_of
from .turns import Turn, Turns

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.acp.protocol import Agent, Client
    from quiesce.wire import Limits, Transport
    from quiesce.wire.inner import Connection

_SESSION_CANCEL = Reason("user", "session/cancel")
_SESSION_CLOSE = Reason("user", "session/close")
_SESSION_DELETE = Reason("user", "session/delete")
_ENDINGS: Final = {"close_session": _SESSION_CLOSE, "delete_session": _SESSION_DELETE}
_CANCELLED = Raw(encode(s.PromptResponse(stop_reason="cancelled")))


def _check_known(transport: Transport) -> None:
    client = transport.client
    if client is not None and not client.is_known:
        raise PermissionError(
            f"an agent is not served to {client.address}, as anybody could be there: give the server a token "
            "(serve_websocket(token=...), serve_tcp(token=...)) or a socket in the file system (serve_unix), "
            "or pass trust_client=True if something in front of it knows its users"
        )


class AgentSideConnection(Side):
    """A connection to a client, for an agent: `run_agent` makes one.

    ```python
    async with AgentSideConnection(MyAgent(), transport) as client:
        await client.wait_closed()
    ```

    - `to_agent`: the agent, or a function that makes it of this connection. If it has `on_connect(conn)`, that is called.
    - `input_stream`: a `quiesce.wire` transport; or an `asyncio.StreamWriter` to write to, with `output_stream` an `asyncio.StreamReader` to
      read from; or the same of anyio.
    - `listening`: begin at once (the default), or with `async with`, `listen()` or the first message.
    - `observers`: functions of a `StreamEvent`, called with every message.
    - `limits`, `grace`, `scope`: as for `quiesce.wire.Peer`.
    - `trust_client`: serve whoever connects. Otherwise a connection that a server of `quiesce.wire` has taken is served only if its client is known
      (it has shown the server's token, or is on a socket in the file system and runs as the same user); else this raises `PermissionError`.
    - `on_disconnect(reason)`: called in the event loop when the client has disconnected, before anything is stopped because of that.

    `session/cancel` cancels the handler of the prompt itself; so do `session/close`, `session/delete` and `$/cancel_request`. The agent's own
    `cancel(session_id)` is called as well, if there was anything to cancel. However a prompt is stopped, it is answered `cancelled`.
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

    # What the client asks

    def _request(self, agent: Any, method: Method) -> Request | None:
        fn = handler_of(agent, method.attribute)
        if fn is None:
            return None
        call = caller(fn)
        around = self._AROUND.get(method.attribute)

        async def handle(params: Any) -> Raw:
            result = await (call(params) if around is None else around(self, call, params))
            return answer_of(result, method.name, agent, may_be_empty=method.may_be_empty)

        return Request(
            handle,
            decoder(method.name, method.params),
            when_cancelled=_CANCELLED if method.attribute == "prompt" else None,
            stopping=self._turn_stopped if method.attribute == "prompt" else None,
            arrived=self._ending_came(_ENDINGS[method.attribute]) if method.attribute in _ENDINGS else None,
        )

    async def _initialize(self, call: Callable[[Any], Any], params: s.InitializeRequest) -> Any:
        self._capabilities = params.client_capabilities
        return await call(params)

    async def _new_session(self, call: Callable[[Any], Any], params: s.NewSessionRequest) -> Any:
        with self._new_sessions.opening(self._peer._connection.backend) as opening:
            result = await call(params)
            opening.session_id = _session_id_of(result)
        return result

    async def _load_session(self, call: Callable[[Any], Any], params: s.LoadSessionRequest) -> Any:
        turn = self._turns.get(params.session_id)
        if turn is not None and turn.prompt.stopped is not None:  # as good as over
            await self._turns.wait_until_idle(params.session_id)
        with self._new_sessions.in_use(params.session_id):
            return await call(params)

    async def _prompt(self, call: Callable[[Any], Any], params: s.PromptRequest) -> Any:
        with self._new_sessions.in_use(params.session_id):
            return await self._take_turn(call, params)

    async def _take_turn(self, call: Callable[[Any], Any], params: s.PromptRequest) -> Any:
        prompt = current_work.get()
        assert isinstance(prompt, Incoming)
        turn = await self._turns.begin(params.session_id, prompt)
        try:
            if prompt.stopped is not None:  # it has waited for its turn until now, in vain
                turn.told = True  # there is nothing to tell
                return s.PromptResponse(stop_reason="cancelled")
            result = await call(params)
        except BaseException as error:
            is_stopped = prompt.stopped is not None or (
                isinstance(error, ConnectionEnded) and self._peer._connection.ended is not None
            )
            if not is_stopped or not isinstance(without_cancels(error), Exception):
                raise
            # It must not be answered with an error: that is how it reacts to being stopped.
            logger.debug("the prompt of %r was cancelled, and raised %r", params.session_id, error)
            return s.PromptResponse(stop_reason="cancelled")
        finally:
            try:
                if prompt.stopped is not None and self._peer._connection.closing and not turn.told:
                    await self._tell_agent(turn)  # no more notifications are handled
            finally:
                self._turns.end(turn)
        return _cancelled(result) if prompt.stopped is not None else result

    def _turn_stopped(self, params: s.PromptRequest, reason: Reason) -> None:
        """Called when the handler of a prompt is cancelled, whoever asked for that."""
        turn, connection = self._turns.get(params.session_id), self._peer._connection
        if turn is None or turn.prompt.stopped is None or turn.prompt.decoded is not params:
            return  # it waits for its turn
        connection.calls.cancel_lane(turn.session_id, f"{reason}")
        if handler_of(self._agent, "cancel") is None:
            return
        turn.handlers += 1

        async def tell(note: s.CancelNotification) -> None:
            try:
                await self._tell_agent(turn)
            finally:
                self._turns.end(turn)

        # Not in the lane of the session: what its prompt still asks must not have to wait for this.
        lane = ("session/cancel", turn.session_id)
        connection.lanes.add(lane, Notification(tell), "session/cancel", turn.note, 0)

    async def _tell_agent(self, turn: Turn) -> None:
        """Call the agent's own `cancel`. It must not wedge the session, nor is it cut short by the end of the connection."""
        cancel = handler_of(self._agent, "cancel")
        if cancel is None:
            return
        turn.told = True

        async def cancel_of_the_agent() -> None:
            await caller(cancel)(turn.note)

        try:
            await shielded(cancel_of_the_agent)
        except Exception:
            logger.exception("%s: the agent's own cancel of %r failed", self._peer.name, turn.session_id)

    def _ending_came(self, reason: Reason) -> Callable[[Any], None]:
        """The turn is stopped when it is asked for, not when there is room for a handler: all the room may be that turn's, and its like's."""
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

    # What is done besides calling the agent's own method, by the name of that.
    _AROUND: Final[Mapping[str, Callable[..., Awaitable[Any]]]] = {
        "initialize": _initialize,
        "new_session": _new_session,
        "load_session": _load_session,
        "resume_session": _load_session,
        "prompt": _prompt,
        "close_session": _close_session,
        "delete_session": _delete_session,
    }

    def _session_cancelled(self, params: s.CancelNotification) -> None:
        """Called before anything that came later is looked at: the next prompt is not meant."""
        turn = self._turns.get(params.session_id)
        if turn is not None:
            turn.note = params
        self._stop_turn(params.session_id, _SESSION_CANCEL)

    def _stop_turn(self, session_id: str, reason: Reason) -> None:
        self._peer._connection.requests.cancel_where(
            lambda method, params: method == "session/prompt" and params.session_id == session_id, reason
        )

    # What the agent asks and tells

    @property
    def client_capabilities(self) -> s.ClientCapabilities | None:
        """What the client has said that it can do; None before `initialize`."""
        capabilities: s.ClientCapabilities | None = self._capabilities
        return capabilities

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        """Tell the client what happens in a session. It arrives before the answer to the request that it belongs to."""
        note = s.SessionNotification(session_id=session_id, update=update, field_meta=kwargs or None)
        if not self._new_sessions.holds_back(note):
            await self._tell("session/update", note)

    def _send_update(self, note: s.SessionNotification) -> None:
        if not self.closed:
            self._peer._connection.send_notification("session/update", Raw(encode(note)))

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[s.PermissionOption], **kwargs: Any
    ) -> s.RequestPermissionResponse:
        """Ask the user. If the turn is cancelled meanwhile, the outcome is `cancelled`."""
        params = s.RequestPermissionRequest(
            session_id=session_id, tool_call=tool_call, options=options, field_meta=kwargs or None
        )
        try:
            response: s.RequestPermissionResponse = await self._ask(
                CLIENT["request_permission"], params, lane=session_id
            )
        except RequestCancelled:
            return s.RequestPermissionResponse(outcome=s.DeniedOutcome(outcome="cancelled"))
        return response

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **kwargs: Any
    ) -> s.ReadTextFileResponse:
        """Read a file as the user sees it, with changes that are not saved yet."""
        params = s.ReadTextFileRequest(
            session_id=session_id, path=path, line=line, limit=limit, field_meta=kwargs or None
        )
        response: s.ReadTextFileResponse = await self._ask(CLIENT["read_text_file"], params, lane=session_id)
        return response

    async def write_text_file(
        self, session_id: str, path: str, content: str, **kwargs: Any
    ) -> s.WriteTextFileResponse:
        """Write a file by way of the client."""
        params = s.WriteTextFileRequest(
            session_id=session_id, path=path, content=content, field_meta=kwargs or None
        )
        response: s.WriteTextFileResponse = await self._ask(
            CLIENT["write_text_file"], params, lane=session_id
        )
        return response

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
        response: s.CreateTerminalResponse = await self._ask(
            CLIENT["create_terminal"], params, lane=session_id, late=_Made(self._peer._connection, session_id)
        )
        return response

    async def terminal_output(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> s.TerminalOutputResponse:
        """What a terminal shows by now."""
        params = s.TerminalOutputRequest(
            session_id=session_id, terminal_id=terminal_id, field_meta=kwargs or None
        )
        response: s.TerminalOutputResponse = await self._ask(
            CLIENT["terminal_output"], params, lane=session_id
        )
        return response

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> s.WaitForTerminalExitResponse:
        """Wait for the end of a terminal's command."""
        params = s.WaitForTerminalExitRequest(
            session_id=session_id, terminal_id=terminal_id, field_meta=kwargs or None
        )
        response: s.WaitForTerminalExitResponse = await self._ask(
            CLIENT["wait_for_terminal_exit"], params, lane=session_id
        )
        return response

    async def kill_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> s.KillTerminalResponse:
        """End a terminal's command; the terminal stays until it is released."""
        params = s.KillTerminalRequest(
            session_id=session_id, terminal_id=terminal_id, field_meta=kwargs or None
        )
        response: s.KillTerminalResponse = await self._ask(CLIENT["kill_terminal"], params, lane=session_id)
        return response

    async def release_terminal(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> s.ReleaseTerminalResponse:
        """Let go of a terminal; its command is ended if it still runs."""
        params = s.ReleaseTerminalRequest(
            session_id=session_id, terminal_id=terminal_id, field_meta=kwargs or None
        )
        response: s.ReleaseTerminalResponse = await self._ask(
            CLIENT["release_terminal"], params, lane=session_id
        )
        return response

    async def create_elicitation(
        self, message: str, mode: s.ElicitationMode, **kwargs: Any
    ) -> s.CreateElicitationResponse:
        """Ask the user to fill in a form, or to visit an address. If the turn is cancelled meanwhile, the action is `cancel`."""
        params = request_of(message, mode, kwargs or None)
        lane: str | None = getattr(mode, "session_id", None)
        try:
            response: s.CreateElicitationResponse = await self._ask(
                CLIENT["create_elicitation"], params, lane=lane
            )
        except RequestCancelled:
            return s.CancelElicitationResponse()
        return response

    async def complete_elicitation(self, elicitation_id: str, **kwargs: Any) -> None:
        """Tell the client that what the user was sent to do elsewhere is done."""
        note = s.CompleteElicitationNotification(elicitation_id=elicitation_id, field_meta=kwargs or None)
        await self._tell("elicitation/complete", note)

    def on_connect(self, conn: Any) -> None:
        """A client has this; nothing is to be done."""


def _cancelled(result: Any) -> Any:
    """What a prompt's handler returned after it was cancelled: whatever that is, it says so."""
    if isinstance(result, s.PromptResponse):
        return result if result.stop_reason == "cancelled" else replace(result, stop_reason="cancelled")
    if isinstance(result, dict):
        return {**result, "stopReason": "cancelled"}
    return s.PromptResponse(stop_reason="cancelled")


def _session_id_of(result: Any) -> str | None:
    name = result.get("sessionId") if isinstance(result, dict) else getattr(result, "session_id", None)
    return name if isinstance(name, str) else None


class _Made(Late):
    """A terminal that was made for somebody who was cancelled meanwhile: nobody else knows its name."""

    __slots__ = ("_connection", "_session_id")

    def __init__(self, connection: Connection, session_id: str) -> None:
        super().__init__()
        self._connection = connection
        self._session_id = session_id

    def answered(self, result: Raw | None) -> None:
        """Let go of it."""
        if result is not None:
            made = decode(result, s.CreateTerminalResponse)
            params = s.ReleaseTerminalRequest(session_id=self._session_id, terminal_id=made.terminal_id)
            self._connection.calls.ask_in_passing("terminal/release", Raw(encode(params)))
