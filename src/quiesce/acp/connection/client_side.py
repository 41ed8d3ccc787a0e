"""The client's end of a connection. The client uses it as the agent.

Updates of one session are handled in order, and before the answer to the request that they belong to
(`prompt`, `load_session`) is delivered. When a turn is cancelled, by `cancel(session_id)` or because the
caller of `prompt()` was cancelled, the questions to the user for that turn are settled: the handlers of its
permission requests are cancelled, and answered with the outcome `cancelled`. So is every question that the
agent asks for that turn before it learns of the cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from quiesce import Reason
from quiesce.acp import schema as s
from quiesce.acp.protocol import (
    AGENT,
    CLIENT,
    Method,
    answer_of,
    caller,
    decoder,
    encode,
    handler_of,
    mode_of,
)
from quiesce.kernel.inner import without_cancels
from quiesce.wire import Notification, Request
from quiesce.wire.inner import Late

from .observers import Observer
from .side import Side, target_of, transport_of

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.acp.protocol import Agent, Client
    from quiesce.wire import Limits

_TURN_CANCELLED = Reason("user", "the turn was cancelled")
# The requests that ask the user something for a turn, and their answers when that turn is cancelled.
_QUESTIONS: Final = {
    "session/request_permission": Raw(
        encode(s.RequestPermissionResponse(outcome=s.DeniedOutcome(outcome="cancelled")))
    ),
    "elicitation/create": Raw(encode(s.CancelElicitationResponse())),
}


class ClientSideConnection(Side):
    """A connection to an agent, for a client: `connect_to_agent` and `spawn_agent_process` make one.

    ```python
    async with ClientSideConnection(MyClient(), transport) as agent:
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
        session = await agent.new_session(cwd=str(Path.cwd()), mcp_servers=[])
        answer = await agent.prompt(session_id=session.session_id, prompt=[text_block("hello")])
    ```

    The arguments are those of `AgentSideConnection`, with a client instead of an agent.

    If you are cancelled in `prompt()`, the agent is told to cancel the turn.
    """

    def __init__(
        self,
        to_client: Callable[[Agent], Client] | Client | Any,
        input_stream: Any,
        output_stream: Any = None,
        listening: bool = True,
        *,
        use_unstable_protocol: bool = False,
        observers: Iterable[Observer] | None = None,
        name: str = "agent",
        limits: Limits | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> None:
        transport = transport_of(input_stream, output_stream)
        self._use_unstable_protocol = use_unstable_protocol
        # By session: the prompts that are waiting for their answer.
        self._prompting: dict[str, set[Late]] = {}
        # By session: the prompts whose turn was cancelled, until they are answered or the next prompt is
        # sent.
        self._stopping: dict[str, set[Late]] = {}
        client = target_of(to_client, self)
        self._client = client
        requests = {
            method.name: request
            for method in CLIENT.values()
            if (request := self._request(client, method)) is not None
        }
        self._connect(
            client,
            transport,
            requests,
            self._notifications(client),
            listening=listening,
            observers=observers,
            name=name,
            limits=limits,
            grace=grace,
            scope=scope,
        )

    # Requests and notifications from the agent

    def _request(self, client: Any, method: Method) -> Request | None:
        fn = handler_of(client, method.attribute)
        if fn is None:
            return None
        call = caller(fn, _question_arguments) if method.attribute == "create_elicitation" else caller(fn)
        when_cancelled = _QUESTIONS.get(method.name)

        async def handle(params: Any) -> Raw:
            # The agent may not know yet that the turn was cancelled: do not bother the user with its
            # question.
            if when_cancelled is not None and getattr(params, "session_id", None) in self._stopping:
                return when_cancelled
            return answer_of(await call(params), method.name, client, may_be_empty=method.may_be_empty)

        return Request(handle, decoder(method.name, method.params), when_cancelled)

    def _notifications(self, client: Any) -> dict[str, Notification]:
        found = {}
        for name, attribute, kind, lane in (
            ("session/update", "session_update", s.SessionNotification, lambda note: note.session_id),
            ("elicitation/complete", "complete_elicitation", s.CompleteElicitationNotification, None),
        ):
            fn = handler_of(client, attribute)
            if fn is not None:
                found[name] = Notification(caller(fn), decoder(name, kind), lane)
        return found

    # Requests and notifications to the agent

    @property
    def agent_capabilities(self) -> s.AgentCapabilities | None:
        """The capabilities that the agent announced; None before `initialize`."""
        capabilities: s.AgentCapabilities | None = self._capabilities
        return capabilities

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: s.ClientCapabilities | None = None,
        client_info: s.Implementation | None = None,
        **kwargs: Any,
    ) -> s.InitializeResponse:
        """Agree with the agent on the protocol version and on both sides' capabilities."""
        params = s.InitializeRequest(
            protocol_version=protocol_version,
            client_capabilities=client_capabilities or s.ClientCapabilities(),
            client_info=client_info,
            field_meta=kwargs or None,
        )
        response = await self._send(AGENT["initialize"], params, s.InitializeResponse)
        self._capabilities = response.agent_capabilities
        return response

    async def authenticate(self, method_id: str, **kwargs: Any) -> s.AuthenticateResponse:
        """Authenticate by one of the methods that the agent named."""
        params = s.AuthenticateRequest(method_id=method_id, field_meta=kwargs or None)
        return await self._send(AGENT["authenticate"], params, s.AuthenticateResponse)

    async def logout(self, **kwargs: Any) -> s.LogoutResponse:
        """Undo `authenticate`."""
        params = s.LogoutRequest(field_meta=kwargs or None)
        return await self._send(AGENT["logout"], params, s.LogoutResponse)

    async def new_session(
        self,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Any] | None = None,
        **kwargs: Any,
    ) -> s.NewSessionResponse:
        """Begin a session."""
        params = s.NewSessionRequest(
            cwd=cwd,
            mcp_servers=mcp_servers or [],
            field_meta=kwargs or None,
            **_without_none(additional_directories=additional_directories),
        )
        return await self._send(AGENT["new_session"], params, s.NewSessionResponse)

    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: list[Any] | None = None,
        additional_directories: list[str] | None = None,
        **kwargs: Any,
    ) -> s.LoadSessionResponse:
        """Continue a session; all updates with its history have been handled when this returns."""
        params = s.LoadSessionRequest(
            cwd=cwd,
            session_id=session_id,
            mcp_servers=mcp_servers or [],
            field_meta=kwargs or None,
            **_without_none(additional_directories=additional_directories),
        )
        return await self._send(AGENT["load_session"], params, s.LoadSessionResponse, lane=session_id)

    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Any] | None = None,
        **kwargs: Any,
    ) -> s.ResumeSessionResponse:
        """Continue a session without its history."""
        params = s.ResumeSessionRequest(
            session_id=session_id,
            cwd=cwd,
            field_meta=kwargs or None,
            **_without_none(additional_directories=additional_directories, mcp_servers=mcp_servers),
        )
        return await self._send(AGENT["resume_session"], params, s.ResumeSessionResponse, lane=session_id)

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **kwargs: Any
    ) -> s.ListSessionsResponse:
        """Return the sessions that the agent knows, one page at a time."""
        params = s.ListSessionsRequest(cwd=cwd, cursor=cursor, field_meta=kwargs or None)
        return await self._send(AGENT["list_sessions"], params, s.ListSessionsResponse)

    async def close_session(self, session_id: str, **kwargs: Any) -> s.CloseSessionResponse:
        """Cancel the session's turn and close the session."""
        params = s.CloseSessionRequest(session_id=session_id, field_meta=kwargs or None)
        self._turn_cancelled(session_id)
        response = await self._send(AGENT["close_session"], params, s.CloseSessionResponse, lane=session_id)
        self._stopping.pop(session_id, None)
        return response

    async def delete_session(self, session_id: str, **kwargs: Any) -> s.DeleteSessionResponse:
        """Delete a session permanently."""
        params = s.DeleteSessionRequest(session_id=session_id, field_meta=kwargs or None)
        self._turn_cancelled(session_id)
        response = await self._send(AGENT["delete_session"], params, s.DeleteSessionResponse, lane=session_id)
        self._stopping.pop(session_id, None)
        return response

    async def set_session_mode(
        self, session_id: str, mode_id: str, **kwargs: Any
    ) -> s.SetSessionModeResponse:
        """Change the mode of a session."""
        params = s.SetSessionModeRequest(session_id=session_id, mode_id=mode_id, field_meta=kwargs or None)
        return await self._send(AGENT["set_session_mode"], params, s.SetSessionModeResponse, lane=session_id)

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **kwargs: Any
    ) -> s.SetSessionConfigOptionResponse:
        """Change an option of a session."""
        kind = (
            s.SetSessionConfigOptionBooleanRequest
            if isinstance(value, bool)
            else s.SetSessionConfigOptionSelectRequest
        )
        params = kind(
            config_id=config_id,
            session_id=session_id,
            value=value,  # type: ignore[arg-type]
            field_meta=kwargs or None,
        )
        return await self._send(
            AGENT["set_config_option"], params, s.SetSessionConfigOptionResponse, lane=session_id
        )

    async def prompt(self, session_id: str, prompt: list[Any], **kwargs: Any) -> s.PromptResponse:
        """Send a prompt and wait for the end of the agent's turn.

        All updates of the turn have been handled when this returns.
        """
        params = s.PromptRequest(session_id=session_id, prompt=prompt, field_meta=kwargs or None)
        self._stopping.pop(session_id, None)
        late = _Prompt(session_id, self._stopping)
        self._prompting.setdefault(session_id, set()).add(late)
        try:
            return await self._send(AGENT["prompt"], params, s.PromptResponse, lane=session_id, late=late)
        except BaseException as error:
            # Cancelled before the answer. `$/cancel_request` was sent already, but not every agent implements
            # that.
            if late.unanswered and without_cancels(error) is None and not self.closed:
                note = s.CancelNotification(session_id=session_id)
                self._connection.sender.send_notification("session/cancel", Raw(encode(note)))
                self._turn_cancelled(session_id)
            raise
        finally:
            late.drop_from(self._prompting)
            # If the answer is still to come, the turn may continue for a while, and so may its questions.
            if not late.unanswered:
                late.drop_from(self._stopping)

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        """Cancel the turn: `prompt()` returns the stop reason `cancelled` when the agent has stopped."""
        note = s.CancelNotification(session_id=session_id, field_meta=kwargs or None)
        self._turn_cancelled(session_id)
        await self._send_notification("session/cancel", note)

    def _turn_cancelled(self, session_id: str) -> None:
        """Settle all questions to the user for the turn, those to come included."""
        if session_id in self._prompting:
            self._stopping.setdefault(session_id, set()).update(self._prompting[session_id])
        self._connection.requests.cancel_where(
            lambda method, params: method in _QUESTIONS and getattr(params, "session_id", None) == session_id,
            _TURN_CANCELLED,
        )

    def on_connect(self, conn: Any) -> None:
        """Do nothing; the method is part of the `Agent` protocol."""


class _Prompt(Late):
    """A prompt that has not been answered yet."""

    __slots__ = ("_session_id", "_stopping")

    def __init__(self, session_id: str, stopping: dict[str, set[Late]]) -> None:
        super().__init__()
        self._session_id = session_id
        self._stopping = stopping

    def answered(self, result: Raw | None) -> None:
        """The turn has ended at last: questions for it are no longer expected."""
        self.drop_from(self._stopping)

    def drop_from(self, prompts: dict[str, set[Late]]) -> None:
        """Remove this prompt from `prompts`, which are keyed by session."""
        of_session = prompts.get(self._session_id)
        if of_session is not None:
            of_session.discard(self)
            if not of_session:
                del prompts[self._session_id]


def _without_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _question_arguments(request: Any) -> dict[str, Any]:
    return {"message": request.message, "mode": mode_of(request)}
