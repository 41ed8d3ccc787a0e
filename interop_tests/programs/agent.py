"""An ACP agent without a model: the prompt says what to do, so that a test can ask for any phase of a turn.

The first word of the prompt's first text is the name of a method of `Turn`; `agent.mjs` knows the same words.
A turn without an end (`stream`, `tool`, `permission` held open, `terminal`) ends by being stopped and in no other way.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any

import anyio

from interop_tests.programs.library import Library, parse

AUTH_METHOD = "token"
MODES = ("ask", "code")
MODELS = ("small", "large")


class Session:
    def __init__(self, session_id: str, cwd: str) -> None:
        self.id = session_id
        self.cwd = cwd
        self.mode = MODES[0]
        self.model = MODELS[0]
        self.said: list[tuple[str, str]] = []  # by whom, what
        self.turn = "none"
        self.told: Any = None  # what the user said of the last permission request
        self.stop: anyio.CancelScope | None = None


class ScriptedAgent:
    def __init__(self, library: Library) -> None:
        self.library = library
        self.acp = library.acp
        self.schema = library.schema
        self.client: Any = None
        self.capabilities: Any = None
        self.authenticated = False
        self.sessions: dict[str, Session] = {}
        self.numbers = itertools.count(1)
        self.notes: list[Any] = []
        self.hanging = "nothing"

    def on_connect(self, conn: Any) -> None:
        self.client = conn

    # Before a session

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: Any = None,
        client_info: Any = None,
        **kwargs: Any,
    ) -> Any:
        self.capabilities = self.library.plain(client_capabilities)
        s = self.schema
        return s.InitializeResponse(
            protocol_version=self.acp.PROTOCOL_VERSION,
            agent_capabilities=s.AgentCapabilities(
                load_session=True,
                prompt_capabilities=s.PromptCapabilities(image=True, embedded_context=True),
                session_capabilities=s.SessionCapabilities(
                    list=s.SessionListCapabilities(),
                    close=s.SessionCloseCapabilities(),
                    resume=s.SessionResumeCapabilities(),
                    delete=s.SessionDeleteCapabilities(),
                ),
                auth=s.AgentAuthCapabilities(logout=s.LogoutCapabilities()),
            ),
            auth_methods=[s.AuthMethodAgent(id=AUTH_METHOD, name="A token")],
            agent_info=s.Implementation(name="interop", title="Interop agent", version="1.0"),
        )

    async def authenticate(self, method_id: str, **kwargs: Any) -> Any:
        if method_id != AUTH_METHOD:
            raise self.acp.RequestError.invalid_params({"methodId": method_id})
        self.authenticated = True
        return self.schema.AuthenticateResponse()

    async def logout(self, **kwargs: Any) -> Any:
        self.authenticated = False

    # Sessions

    async def new_session(
        self, cwd: str, additional_directories: Any = None, mcp_servers: Any = None, **kwargs: Any
    ) -> Any:
        if not self.authenticated:
            raise self.acp.RequestError.auth_required({"methods": [AUTH_METHOD]})
        session = Session(f"session-{next(self.numbers)}", cwd)
        self.sessions[session.id] = session
        return self.schema.NewSessionResponse(
            session_id=session.id, modes=self.modes(session), config_options=self.options(session)
        )

    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: Any = None,
        additional_directories: Any = None,
        **kwargs: Any,
    ) -> Any:
        session = self.session(session_id)
        for who, text in session.said:
            content = self.acp.text_block(text)
            chunk = self.acp.update_user_message if who == "user" else self.acp.update_agent_message
            await self.client.session_update(session_id, chunk(content))
        return self.schema.LoadSessionResponse(
            modes=self.modes(session), config_options=self.options(session)
        )

    async def resume_session(self, session_id: str, cwd: str, **kwargs: Any) -> Any:
        session = self.session(session_id)
        return self.schema.ResumeSessionResponse(
            modes=self.modes(session), config_options=self.options(session)
        )

    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **kwargs: Any) -> Any:
        found = [
            self.schema.SessionInfo(session_id=one.id, cwd=one.cwd, title=f"Session {one.id}")
            for one in self.sessions.values()
            if cwd in (None, one.cwd)
        ]
        return self.schema.ListSessionsResponse(sessions=found)

    async def close_session(self, session_id: str, **kwargs: Any) -> Any:
        session = self.sessions.pop(session_id, None)
        if session is not None and session.stop is not None:
            session.stop.cancel()
        return self.schema.CloseSessionResponse()

    async def delete_session(self, session_id: str, **kwargs: Any) -> Any:
        await self.close_session(session_id)

    async def set_session_mode(self, session_id: str, mode_id: str, **kwargs: Any) -> Any:
        session = self.session(session_id)
        if mode_id not in MODES:
            raise self.acp.RequestError.invalid_params({"modeId": mode_id})
        session.mode = mode_id
        await self.client.session_update(session_id, self.library.helpers.update_current_mode(mode_id))
        return self.schema.SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **kwargs: Any
    ) -> Any:
        session = self.session(session_id)
        if config_id != "model" or value not in MODELS:
            raise self.acp.RequestError.invalid_params({config_id: value})
        session.model = str(value)
        return self.schema.SetSessionConfigOptionResponse(config_options=self.options(session))

    def session(self, session_id: str) -> Session:
        try:
            return self.sessions[session_id]
        except KeyError:
            raise self.acp.RequestError.resource_not_found(session_id) from None

    def modes(self, session: Session) -> Any:
        available = [self.schema.SessionMode(id=mode, name=mode.title()) for mode in MODES]
        return self.schema.SessionModeState(current_mode_id=session.mode, available_modes=available)

    def options(self, session: Session) -> list[Any]:
        choices = [self.schema.SessionConfigSelectOption(value=model, name=model.title()) for model in MODELS]
        return [
            self.schema.SessionConfigOptionSelect(
                id="model", name="Model", type="select", current_value=session.model, options=choices
            )
        ]

    # Turns

    async def prompt(self, session_id: str, prompt: list[Any], **kwargs: Any) -> Any:
        session = self.session(session_id)
        session.turn = "running"
        turn = Turn(self, session, prompt)
        try:
            if self.library.ours:  # whoever stops the turn cancels this very call
                await turn.play()
            else:
                with anyio.CancelScope() as session.stop:
                    await turn.play()
                if session.stop.cancelled_caught:
                    turn.stop_reason = "cancelled"
        except anyio.get_cancelled_exc_class():
            session.turn = "cancelled"
            raise
        except Exception:
            session.turn = "failed"
            raise
        finally:
            session.stop = None
        session.turn = "cancelled" if turn.stop_reason == "cancelled" else "finished"
        return self.schema.PromptResponse(stop_reason=turn.stop_reason)

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        session = self.sessions.get(session_id)
        if session is not None and session.stop is not None:
            session.stop.cancel()

    # Extensions

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "interop/state":
            return {
                "turns": {one.id: one.turn for one in self.sessions.values()},
                "told": {one.id: one.told for one in self.sessions.values()},
                "capabilities": self.capabilities,
                "notes": self.notes,
                "hanging": self.hanging,
            }
        if method == "interop/hang":
            self.hanging = params["name"]
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                self.hanging = f"{params['name']}, cancelled"
                raise
        raise self.acp.RequestError.method_not_found(f"_{method}")

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        self.notes.append({"method": method, "params": params})


class Turn:
    """One prompt. Each public method but `play` is a word that a prompt may begin with."""

    def __init__(self, agent: ScriptedAgent, session: Session, prompt: list[Any]) -> None:
        self.agent = agent
        self.acp = agent.acp
        self.schema = agent.schema
        self.client = agent.client
        self.session = session
        self.prompt = prompt
        self.stop_reason = "end_turn"
        # Inherited by every process that this turn starts, so that a test can see what is left of it.
        self.env = {**os.environ, "QUIESCE_INTEROP_TURN": session.id}

    async def play(self) -> None:
        text = self.prompt[0].text
        self.session.said.append(("user", text))
        word, *arguments = text.split(" ")
        await getattr(self, word)(*arguments)

    async def _say(self, text: str) -> None:
        self.session.said.append(("agent", text))
        await self._update(self.acp.update_agent_message(self.acp.text_block(text)))

    async def _update(self, update: Any) -> None:
        await self.client.session_update(self.session.id, update)

    async def stream(self, count: str = "") -> None:
        """So many chunks; without a number, chunks for ever."""
        for number in range(int(count)) if count else itertools.count():
            await self._say(f"chunk {number}")
            if not count:
                await anyio.sleep(0.01)

    async def tool(self, text: str = "") -> None:
        """A tool that runs a command: one that prints the text; without a text, one that never ends."""
        argv = ["echo", text] if text else ["sleep", "3600"]
        await self._update(
            self.acp.start_tool_call(
                "call-1", "Run a command", kind="execute", status="in_progress", raw_input={"argv": argv}
            )
        )
        async with self.agent.library.command(argv, self.env) as command:
            output = await command.read()
            code = await command.wait()
        content = [self.acp.tool_content(self.acp.text_block(output.decode()))]
        await self._update(
            self.acp.update_tool_call(
                "call-1", status="completed", content=content, raw_output={"exitCode": code}
            )
        )
        await self._say("tool done")

    async def permission(self, patient: str = "") -> None:
        """Ask the user. A `patient` agent hears of no cancel until it has its answer."""
        options = [
            self.schema.PermissionOption(option_id="yes", name="Allow", kind="allow_once"),
            self.schema.PermissionOption(option_id="no", name="Reject", kind="reject_once"),
        ]
        tool_call = self.schema.ToolCallUpdate(
            tool_call_id="call-2", title="Delete everything", kind="delete"
        )
        with anyio.CancelScope(shield=bool(patient)):
            answer = await self.client.request_permission(
                session_id=self.session.id, tool_call=tool_call, options=options
            )
            self.session.told = self.agent.library.plain(answer)["outcome"]
        outcome = self.session.told
        await self._say(f"permission {json.dumps(outcome)}")
        if outcome["outcome"] == "cancelled":
            # By the protocol this means that the turn is cancelled, which the agent may be about to hear.
            self.stop_reason = "cancelled"

    async def read(self, path: str, line: str = "", limit: str = "") -> None:
        answer = await self.client.read_text_file(
            session_id=self.session.id,
            path=path,
            line=int(line) if line else None,
            limit=int(limit) if limit else None,
        )
        await self._say(answer.content)

    async def write(self, path: str, *words: str) -> None:
        await self.client.write_text_file(session_id=self.session.id, path=path, content=" ".join(words))
        await self._say("written")

    async def terminal(self, what: str = "") -> None:
        """`run` a command to its end, `kill` one that runs; without either, wait for one that never ends."""
        script = "printf 'one two three'; exit 3" if what == "run" else "echo started; exec sleep 3600"
        created = await self.client.create_terminal(
            session_id=self.session.id,
            command="sh",
            args=["-c", script],
            env=[self.schema.EnvVariable(name="QUIESCE_INTEROP_TURN", value=self.session.id)],
            output_byte_limit=5 if what == "run" else None,
        )
        where = {"session_id": self.session.id, "terminal_id": created.terminal_id}
        plain = self.agent.library.plain
        try:
            await self._update(
                self.acp.start_tool_call(
                    "call-3",
                    "In a terminal",
                    status="in_progress",
                    content=[self.acp.tool_terminal_ref(created.terminal_id)],
                )
            )
            if what == "kill":
                output = ""
                while "started" not in output:
                    await anyio.sleep(0.01)
                    output = (await self.client.terminal_output(**where)).output
                await self.client.kill_terminal(**where)
            exited = plain(await self.client.wait_for_terminal_exit(**where))
            output = plain(await self.client.terminal_output(**where))
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await self.client.release_terminal(**where)
                except ConnectionError:
                    pass  # the client has gone, and its terminals with it
        try:
            await self.client.terminal_output(**where)
            after: Any = "still there"
        except self.acp.RequestError as error:
            after = error.code
        await self._say(json.dumps({"exited": exited, "output": output, "after": after}))

    async def extension(self) -> None:
        await self.client.ext_notification("interop/note", {"text": "a note"})
        answer = await self.client.ext_method("interop/echo", {"deep": [1, {"two": None}]})
        try:
            await self.client.ext_method("interop/unknown", {})
            refused: Any = "answered"
        except self.acp.RequestError as error:
            refused = error.code
        await self._say(json.dumps({"answer": answer, "refused": refused}))

    async def elicit(self) -> None:
        wire = {
            "sessionId": self.session.id,
            "requestedSchema": {
                "type": "object",
                "properties": {"name": {"type": "string", "title": "Name"}, "sure": {"type": "boolean"}},
                "required": ["name"],
            },
        }
        mode = self.agent.library.message("ElicitationFormSessionMode", wire)
        answer = await self.client.create_elicitation(message="Who are you?", mode=mode)
        await self._say(json.dumps(self.agent.library.plain(answer)))

    async def kinds(self) -> None:
        await self._say(json.dumps([self.agent.library.plain(block) for block in self.prompt]))

    async def every(self) -> None:
        """One update of each kind that both libraries have."""
        for kind, wire in json.loads(self.prompt[1].text):
            await self._update(self.agent.library.message(kind, wire))

    async def fail(self) -> None:
        raise self.acp.RequestError(-32050, "no luck", {"why": "it was asked for"})

    async def blow(self) -> None:
        raise ZeroDivisionError("an error that nobody caught")

    async def exit(self) -> None:
        os._exit(7)

    async def hangup(self) -> None:
        """Say nothing more, and go on running: a program that closes its stdout is not one that ends."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        await anyio.sleep_forever()


def main() -> None:
    library, arguments, _ = parse(__doc__ or "")

    async def serve() -> None:
        await library.acp.run_agent(ScriptedAgent(library), **library.connection_options())

    library.run(serve, arguments.backend)


if __name__ == "__main__":
    main()
